"""Experiments on the loader: how fast it is with other numbers of workers."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from .nested import tensors_in


def training_loader(session: Any) -> tuple[Any, str]:
    """The first loader that shuffles, else the first, and where it was made; (None, "") without any."""
    pairs = [(loader, site) for loader, site in session.loaders if isinstance(loader, DataLoader)]
    shuffled = [pair for pair in pairs if isinstance(pair[0].sampler, RandomSampler)]
    return next(iter(shuffled or pairs), (None, ""))


def on_device(value: Any) -> bool:
    """Whether any tensor in `value` is on another device than the CPU."""
    return any(tensor.device.type != "cpu" for tensor in tensors_in(value))


def unfit(loader: Any) -> str:
    """Why the loader can't be rebuilt; empty if it can."""
    if isinstance(loader.dataset, IterableDataset):
        return "an iterable dataset can't be read again without harm"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"{type(loader).__name__} fetches in its own way"
    if "fork" not in multiprocessing.get_all_start_methods():
        return "no fork here, so that workers would run the script again"
    return ""


def index_batches(loader: Any, most: int) -> list[Any]:
    """The first batches of indices from the loader's sampler; the state of its generators is restored."""
    with _preserved_generators(loader):
        source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        return list(itertools.islice(iter(source), most))


@contextlib.contextmanager
def _preserved_generators(loader: Any) -> Iterator[None]:
    holders = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    generators = {id(g): g for g in (getattr(holder, "generator", None) for holder in holders) if g is not None}
    states = {key: generator.get_state() for key, generator in generators.items()}
    try:
        yield
    finally:
        for key, generator in generators.items():
            generator.set_state(states[key])


def rebuilt(loader: Any, batches: list[Any], workers: int, timeout: float) -> Any:
    """A plain DataLoader over the given batches of indices, with the same dataset, collate and worker set-up."""
    options: dict[str, Any] = {"collate_fn": loader.collate_fn, "num_workers": workers}
    if loader.batch_sampler is not None:
        options["batch_sampler"] = batches
    else:
        options.update(sampler=batches, batch_size=None)
    if workers:
        options.update(
            worker_init_fn=loader.worker_init_fn,
            prefetch_factor=loader.prefetch_factor or 2,
            timeout=timeout,
            multiprocessing_context="fork",
        )
    return DataLoader(loader.dataset, **options)


@contextlib.contextmanager
def _batches_of(loader: Any, batches: list[Any], workers: int, timeout: float) -> Iterator[Any]:
    """200 batches for each worker. No worker outlives the block, which the last batch or a timeout ends."""
    many = list(itertools.islice(itertools.cycle(batches), 200 * max(1, workers)))
    begin = time.perf_counter()
    iterator = iter(rebuilt(loader, many, workers, timeout))
    try:
        yield iterator
    except StopIteration:
        pass
    except RuntimeError:
        if time.perf_counter() - begin < timeout:
            raise
    finally:
        processes = list(getattr(iterator, "_workers", []))
        with contextlib.suppress(Exception):
            iterator._shutdown_workers()
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join(2.0)


def seconds_a_batch(loader: Any, batches: list[Any], workers: int, seconds: float) -> float | None:
    """Steady seconds per batch while nothing else computes; None if none came within `seconds`.

    Workers deliver in bursts of one each, so the clock starts after the first burst and stops after a whole one.
    """
    burst, best = max(1, workers), None
    begin = time.perf_counter()
    with _batches_of(loader, batches, workers, seconds) as iterator:
        for _ in range(burst):
            next(iterator)
        start = time.perf_counter()
        for bursts in range(1, 200):
            for _ in range(burst):
                next(iterator)
            now = time.perf_counter()
            best = (now - start) / (bursts * burst)
            if now - begin > seconds or (bursts >= 3 and now - start > 0.5):
                break
    return best


def _processor_share(dataset: Any, batches: list[Any]) -> float:
    """Share of an item's time spent computing; the rest is waiting, such as for disks."""
    wall, work = time.perf_counter(), time.thread_time()
    flat = (index for batch in batches for index in (batch if isinstance(batch, (list, tuple)) else [batch]))
    for index in itertools.islice(flat, 64):
        dataset[index]
        if time.perf_counter() - wall > 0.2:
            break
    return min(1.0, (time.thread_time() - work) / max(time.perf_counter() - wall, 1e-9))


def step_beside(
    loader: Any, batches: list[Any], workers: int, cycle: Callable[[], object], limit: float
) -> float | None:
    """Seconds of a step of the whole loop: a batch from this many workers, then forward and backward beside them.

    Batches that the workers prefetched are consumed first. None if that takes longer than `limit` seconds.
    """
    ahead, steps = workers * (loader.prefetch_factor or 2), 0
    begin = start = time.perf_counter()
    with _batches_of(loader, batches, workers, max(1.0, limit)) as iterator:
        while True:
            next(iterator)
            cycle()
            steps, now = steps + 1, time.perf_counter()
            if steps == ahead:
                start = now
            if steps >= ahead + max(3, workers) and now - begin > limit / 2:
                return (now - start) / (steps - ahead)
            if now - begin > limit:
                return (now - start) / (steps - ahead) if steps >= ahead + max(2, workers // 2) else None
    return None


def whole_loop(
    loader: Any, batches: list[Any], counts: list[int], cycle: Callable[[], object], seconds: float
) -> dict[str, list[float]]:
    """Seconds of whole steps by number of workers, in two rounds over `counts`, the second in reverse."""
    limit = seconds / (2 * len(counts))
    times: dict[str, list[float]] = {}
    for order in (counts, counts[::-1]):
        for count in order:
            elapsed = step_beside(loader, batches, count, cycle, limit)
            if elapsed is not None:
                times.setdefault(str(count), []).append(elapsed)
    return times


def workers(session: Any, seconds: float, cycle: Callable[[], object] | None = None) -> dict[str, Any]:
    """Seconds a batch by number of workers: none, the present number, and 1, 2, 4 .. up to the usable cores.

    cycle: forward and backward, on a CPU that they share with the workers: "loop" then has seconds of whole steps.
    """
    loader, site = training_loader(session)
    if loader is None:
        return {"skipped": "no DataLoader"}
    result: dict[str, Any] = {"site": site, "now": loader.num_workers}
    reason = unfit(loader)
    if reason:
        return {"skipped": reason, **result}
    begin, whole = time.perf_counter(), seconds
    seconds = seconds if cycle is None else seconds / 2  # The rest is for whole steps.
    batches = index_batches(loader, 64)
    first = batches[0][0] if loader.batch_sampler is not None else batches[0]
    if on_device(loader.dataset[first]):
        return {"skipped": "the items are on the device already", **result}
    slow = (time.perf_counter() - begin) * (loader.batch_size or 1)
    if slow > seconds / 4:
        return {"skipped": f"a batch takes {slow:.1f} s", "needs_s": 16 * slow, **result}
    cores = session.cores
    share = _processor_share(loader.dataset, batches)
    counts = sorted({2**k for k in range(10) if 2**k <= cores} | {cores})
    counts = [loader.num_workers, *(n for n in (0, *counts) if n != loader.num_workers)]
    result.update(cores=cores, batch_size=loader.batch_size, cpu_share=share, threads=torch.get_num_threads())
    times: dict[int, float] = {}
    for number, count in enumerate(counts):
        remaining = seconds - (time.perf_counter() - begin)
        # A quarter for the present number, which all others are compared with.
        share = remaining / 4 if number == 0 else remaining / (len(counts) - number)
        if remaining <= 0.2:
            result["cut"] = "no time for more workers"
            break
        elapsed = seconds_a_batch(loader, batches, count, share)
        if elapsed is not None:
            times[count] = elapsed
    result["seconds"] = {str(count): times[count] for count in sorted(times)}
    if cycle is not None and times:
        other = (0, min(times, key=lambda count: times[count]), cores)
        tried = list(dict.fromkeys([loader.num_workers, *other]))
        result["loop"] = whole_loop(loader, batches, tried, cycle, whole - (time.perf_counter() - begin))
    if times:
        # The fewest within a tenth of the fastest: more would only take memory.
        result["best"] = min(count for count in times if times[count] <= 1.1 * min(times.values()))
    return result
