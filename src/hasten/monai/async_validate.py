"""Asynchronous validation: on a copy of the weights, in a thread, on its own CUDA stream."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import nn

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Validated(Generic[R]):
    """The result of a validation."""

    step: int
    """The step after which the weights were copied."""
    result: R
    seconds: float
    """Wall time of the validation itself."""
    network: nn.Module
    """The weights it belongs to. They change with the next request: save them before, or not at all."""


class AsyncValidation(Generic[R]):
    """`request(network, step)` copies the weights and validates the copy while the training continues.

    At most one validation runs at a time. Its result, or what it raised, comes out of a later `poll`, `request` or
    `finish`, in the thread that calls them: `deliver(validated)` is called there, before the copy takes other weights.

    validate: gets the copy, in evaluation mode, and should return values on the host. It runs in its own thread, so it
    must not touch what the training uses, nor draw from torch's global generators (a `DataLoader` without its own
    `generator` does, whenever it is iterated over). like: a network, or average, of the kind that is to be
    validated, not compiled; it is copied once. when_busy: what a request does while a validation runs: "skip" it, or
    "wait" for that one's end. threads: cores that a validation uses on a CPU; None for as many as the training uses.

    On a GPU the copy is made on the training's stream, and the validation waits for it there: the host waits for
    neither. It takes extra memory for the copy and for the validation's activations. On a CPU both share the cores, so
    it gains nothing unless the training leaves some idle.

    Use it in a `with` statement: its end waits for the last validation, or discards it after an error.
    """

    def __init__(
        self,
        validate: Callable[[nn.Module], R],
        deliver: Callable[[Validated[R]], None],
        *,
        like: nn.Module,
        when_busy: str = "skip",
        threads: int | None = None,
    ) -> None:
        if when_busy not in ("skip", "wait"):
            raise ValueError(f'when_busy={when_busy!r}: "skip" or "wait"')
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads}: give the number of cores for a validation, 1 or more")
        self.validate, self.deliver, self.when_busy, self.threads = validate, deliver, when_busy, threads
        self.network = copy.deepcopy(like).requires_grad_(False).eval()
        self.device = next((tensor.device for tensor in self.network.parameters()), torch.device("cpu"))
        self.seconds = 0.0
        """Total duration of all delivered validations."""
        self.blocked_seconds = 0.0
        """Time that the training was blocked: copying weights and waiting for a validation to end."""
        self.skipped = 0
        """Requests made while a validation ran."""
        self._running: tuple[int, Future[tuple[R, float]]] | None = None
        """The step, and the result with its seconds."""
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        # One thread for all validations: cuDNN's plans and handles belong to a thread.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="validation")
        if threads is not None:
            self._executor.submit(_take_threads, threads).result()
            # It applies to threads started later, too: restore the training's number.
            torch.set_num_threads(torch.get_num_threads())

    @property
    def busy(self) -> bool:
        """Whether a validation is running or its result is not delivered yet."""
        return self._running is not None

    def request(
        self,
        network: nn.Module,
        step: int,
        *,
        validate: Callable[[nn.Module], R] | None = None,
        when_busy: str | None = None,
    ) -> bool:
        """Begin to validate the weights that `network` has now; False where the request is skipped.

        validate, when_busy: override the constructor's for this request. A run's last request should "wait".
        """
        begin = time.perf_counter()
        self.poll()
        if self._running is not None:
            if (when_busy or self.when_busy) == "skip":
                self.skipped += 1
                return False
            self.finish()
        with torch.no_grad():
            weights = [weight.detach() for weight in self.network.parameters()]
            torch._foreach_copy_(weights, [weight.detach() for weight in network.parameters()])
            for target, source in zip(self.network.buffers(), network.buffers(), strict=True):
                target.copy_(source)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        self._running = step, self._executor.submit(self._validated, validate or self.validate)
        self.blocked_seconds += time.perf_counter() - begin
        return True

    def poll(self) -> None:
        """Deliver the result if there is one; never waits. Raises what the validation raised."""
        if self._running is not None and self._running[1].done():
            self._hand_over()

    def finish(self) -> None:
        """Wait for the running validation, if any, and deliver its result. Raises what it raised."""
        if self._running is not None:
            begin = time.perf_counter()
            self.wait()
            self.blocked_seconds += time.perf_counter() - begin
            self._hand_over()

    def wait(self) -> None:
        """Block until no validation runs. Its result, or what it raised, stays for a later `poll`."""
        if self._running is not None:
            wait([self._running[1]])

    def close(self) -> None:
        """Wait for the running validation, if any, and discard its result or error."""
        self.wait()
        self._running = None

    def __enter__(self) -> AsyncValidation[R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
            else:
                self.close()
        finally:
            self._executor.shutdown()

    def _hand_over(self) -> None:
        assert self._running is not None
        (step, future), self._running = self._running, None
        error = future.exception()
        if error is not None:
            error.add_note(f"while the weights of step {step} were validated")
            raise error
        result, seconds = future.result()
        self.seconds += seconds
        self.deliver(Validated(step=step, result=result, seconds=seconds, network=self.network))

    def _validated(self, validate: Callable[[nn.Module], R]) -> tuple[R, float]:
        begin = time.perf_counter()
        if self._stream is None:
            result = validate(self.network)
        else:
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                result = validate(self.network)
                self._stream.synchronize()
        return result, time.perf_counter() - begin


def _take_threads(count: int) -> None:
    torch.set_num_threads(count)
    torch.get_num_threads()  # a thread takes the number over at its first question, and then keeps it
