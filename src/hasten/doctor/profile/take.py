"""Profiles a few steps of a run, a validation and a checkpoint with torch's profiler, outside the run's folder."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.config.schema import RunConfig
from hasten.doctor.profile.tables import MODULE, STEP
from hasten.doctor.training import (
    RunComponents,
    collected_between_steps,
    prepare_run,
    save_checkpoint,
    synchronize,
    validate_some,
)
from hasten.feed.feed import Feed
from hasten.observe.clock import Clock
from hasten.observe.ranges import Range

WARM_UP = 3
"""Steps before any that count: memory is allocated, libraries choose their algorithms."""
CASES = 2
"""Validation cases."""
_PLAIN = 5
"""Steps at most that are timed without the profiler, for what it costs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A profile and the setting it was recorded with."""

    profiler: Any
    """A finished `torch.profiler.profile`; None if Nsight recorded instead of torch's profiler."""
    steps: int
    cases: int
    plain_s: float
    """Median seconds of a step without the profiler."""
    step_s: float
    """Mean seconds of a step with it."""
    device: str
    setting: dict[str, str]
    notes: tuple[str, ...]


def take(
    config: RunConfig, *, steps: int, cases: int = CASES, with_profiler: bool = True, clock: Clock | None = None
) -> Taken:
    """Put the run together as `train` does and profile `steps` steps, a validation of `cases` and a checkpoint.

    Only the cache is written to. clock: is told what begins, such as timing. Raises ValueError for what is wrong with
    the settings or the data.
    """
    assert steps >= 1
    notes = []
    if config.train.capture is not False:
        # A replayed graph is one launch: nothing in it has a phase or a name.
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, capture=False))
    components = prepare_run(config, clock or Clock())
    if components.planned.device.type == "cuda":
        notes.append("Taken without a CUDA graph, which would hide the phases; training may use one and be faster.")
    compiled = components.accelerators["compiled network"].on
    if compiled:
        notes.append("The network is compiled, so that its modules have no separate ranges.")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hasten-profile-")))
        stack.enter_context(collected_between_steps())
        if not compiled:
            for network in {components.step.update.weights, components.validated}:
                stack.enter_context(_modules_marked(network))
        return _run_profiled(components, folder, steps, cases, with_profiler=with_profiler, notes=tuple(notes))


def _run_profiled(
    components: RunComponents, folder: Path, steps: int, cases: int, *, with_profiler: bool, notes: tuple[str, ...]
) -> Taken:
    device, plain = components.planned.device, min(steps, _PLAIN)
    total = components.planned.config.train.steps
    last = WARM_UP + plain + steps
    with closing(iter(Feed(components.program, last=last))) as feed:

        def run(first: int, count: int) -> list[float]:
            times = []
            for index in range(first, first + count):
                begin = time.perf_counter()
                with Range(STEP):
                    batch = next(feed)
                    components.step(batch["image"], batch["label"], min(index, total - 1))
                if not with_profiler or first < WARM_UP + plain:
                    synchronize(device)
                times.append(time.perf_counter() - begin)
            return times

        run(0, WARM_UP)
        seconds = run(WARM_UP, plain)
        profiler = _profiler(device) if with_profiler else nullcontext()
        with profiler:
            begin = time.perf_counter()
            run(WARM_UP + plain, steps)
            with Range("waiting for the device") if device.type == "cuda" else nullcontext():
                synchronize(device)
            elapsed = time.perf_counter() - begin
            validate_some(components, cases)
            save_checkpoint(components, folder)
            synchronize(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Taken(
        profiler=profiler if with_profiler else None,
        steps=steps,
        cases=min(cases, len(components.planned.validation)),
        plain_s=statistics.median(seconds),
        step_s=elapsed / steps,
        device=name,
        setting=_setting(components),
        notes=notes,
    )


def _profiler(device: torch.device) -> Any:
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities):
        torch.ones(1, device=device).sum()  # what starting the profiler for the first time takes is no part of a step
    # Batches may be made on a thread, which torch leaves out by default.
    return profile(activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True))


@contextmanager
def _modules_marked(network: nn.Module) -> Iterator[None]:
    """Inside the block every module of the network is a range by its path."""
    handles = []
    for name, module in network.named_modules():
        if not name:
            continue
        mark = Range(f"{MODULE}{name} ({type(module).__name__})")

        def begin(*_: object, mark: Range = mark) -> None:  # what a hook returns replaces the module's inputs
            mark.__enter__()

        def end(*_: object, mark: Range = mark) -> None:
            mark.__exit__(None, None, None)

        handles.append(module.register_forward_pre_hook(begin))
        handles.append(module.register_forward_hook(end, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _setting(components: RunComponents) -> dict[str, str]:
    """What the figures depend on."""
    config = components.planned.config
    return {
        "data": config.data.source,
        "patch": " x ".join(map(str, config.sample.patch)),
        "batch size": str(config.sample.batch_size),
        "precision": str(config.train.precision),
        "channels-last": str(config.train.channels_last).lower(),
        "compiled network": str(components.accelerators["compiled network"].on).lower(),
        "arena": components.arena.home,
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }
