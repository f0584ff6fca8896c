"""Times on a device, by its own events, and the memory that a call takes at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.harness import interleave
from hasten.runtime.side_stream import SideStream


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int = 1) -> Callable[[], float]:
    """A call that gives the milliseconds of one `call`, the mean of `repeats` in a row.

    Nothing waits for the device between them, as in a training loop; on a GPU the clock is the device's.
    """

    def timed() -> float:
        if device.type != "cuda":
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            return 1e3 * (time.perf_counter() - begin) / repeats
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeats

    return timed


def turns(
    arms: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int, repeats: int = 1, warmup: int = 1
) -> dict[str, list[float]]:
    """Milliseconds of every arm, the arms in turns."""
    return interleave({name: milliseconds(call, device, repeats) for name, call in arms.items()}, rounds, warmup)


def replayed(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call as a CUDA graph, in which a host that launches slowly costs nothing; the call itself off a GPU.

    Raises RuntimeError for a call that can't be captured.
    """
    if device.type != "cuda":
        return call
    side, nothing = SideStream(device), torch.empty(0, device=device)

    def warm() -> torch.Tensor:
        call()
        return nothing

    for _ in range(3):  # libraries make handles and workspaces
        side.run(warm)
    return side.capture(call)[0].replay


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Wall time of a call and of what it queued."""
    wait(device)
    begin = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - begin


def peak_mib(call: Callable[[], object], device: torch.device) -> float | None:
    """MiB that torch had reserved at most during a call, a captured graph's own pool included; None off a GPU.

    What is allocated does not count a graph's memory, which torch only reserves.
    """
    if device.type != "cuda":
        call()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) / 2**20
