"""Experiments on the data: other numbers of workers, and work on items that is done again in every epoch."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from .exp_time import memory, random_mark
from .nested import leaves, tensors_in


def training_loader(session: Any) -> tuple[Any, str]:
    """The first loader that shuffles, else the first, and where it was made; (None, "") without any."""
    shuffled = [pair for pair in session.loaders if isinstance(pair[0].sampler, RandomSampler)]
    return next(iter(shuffled or session.loaders), (None, ""))


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


def asked(loader: Any) -> tuple[list[Any], int, list[Any]]:
    """The first batches of indices, how many are in one, and the indices; the samplers' generators stay as they are."""
    holders = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    generators = {id(g): g for g in (getattr(holder, "generator", None) for holder in holders) if g is not None}
    states = {key: generator.get_state() for key, generator in generators.items()}
    source = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    batches = list(itertools.islice(iter(source), 64))
    for key, generator in generators.items():
        generator.set_state(states[key])
    if loader.batch_sampler is None:
        return batches, 1, batches
    # Accelerate's loaders have no batch_size.
    return batches, len(batches[0]), [index for batch in batches for index in batch]


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


def workers(session: Any, seconds: float, cycle: Callable[[], object] | None = None) -> dict[str, Any]:
    """Seconds a batch with the present number of workers and without any; by `cycle` whole steps with other numbers.

    cycle: forward and backward, beside which the workers run: "loop" then has the seconds of whole steps by number.
    """
    loader, site = training_loader(session)
    if loader is None:
        return {"skipped": "no DataLoader"}
    result: dict[str, Any] = {"site": site, "now": loader.num_workers}
    reason = unfit(loader)
    if reason:
        return {"skipped": reason, **result}
    begin, cores = time.perf_counter(), session.cores
    batches, size, indices = asked(loader)
    cost = _cost(loader.dataset, indices[:2], seconds / 8)
    if "skipped" in cost:
        return {**cost, **result}
    slow = cost["item_s"] * size
    if slow > seconds / 8:
        return {"skipped": f"a batch takes {slow:.1f} s", "needs_s": 16 * slow, **result}
    times = {count: seconds_a_batch(loader, batches, count, seconds / 8) for count in {loader.num_workers, 0}}
    result.update(cores=cores, batch_size=loader.batch_size)
    result["seconds"] = {str(count): taken for count, taken in sorted(times.items()) if taken is not None}
    if cycle is not None:
        counts = list(dict.fromkeys([loader.num_workers, 0, max(1, cores // 2), min(8, cores)]))
        limit = (seconds - (time.perf_counter() - begin)) / (2 * len(counts))
        loop: dict[str, list[float]] = {}
        for count in counts + counts[::-1]:
            elapsed = step_beside(loader, batches, count, cycle, limit)
            if elapsed is not None:
                loop.setdefault(str(count), []).append(elapsed)
        result["loop"] = loop
    return result


_DRAWS = 4
"""Number of times an item is made before it counts as constant."""
_TWICE = 4.0
"""Seconds of an item up to which it is made twice, however short the time is."""
_CACHES = ("CacheDataset", "PersistentDataset", "CacheNTransDataset", "LMDBDataset", "SmartCacheDataset", "GDSDataset")


def items(session: Any, seconds: float) -> dict[str, Any]:
    """Test whether an item, or its first part, is the same each time, what it costs, and whether the results fit."""
    loader, site = training_loader(session)
    if loader is None:
        return {"skipped": "no DataLoader"}
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return {"skipped": "an iterable dataset has no items"}
    _, size, indices = asked(loader)
    indices = list({repr(index): index for index in indices}.values())[:8]  # one may be a list
    result = {**_cost(dataset, indices, seconds / 4), "site": site, "batch_size": size}
    if "skipped" in result:
        return result
    if result["item_s"] > max(seconds, _TWICE):
        return {**result, "skipped": "one item takes too long to be made twice"}
    result.update(_prefix(dataset, indices, seconds) or _whole(dataset, indices, result["item_s"], seconds / 2))
    if "bytes" in result:
        result.update(items=len(dataset), free_bytes=memory()[0])
    return result


def _cost(dataset: Any, indices: list[Any], seconds: float) -> dict[str, Any]:
    """Mean seconds of an item, and of the processor for it; the first, which also imports modules, does not count."""
    rows, begin = [], time.perf_counter()
    for index in indices:
        start, work = time.perf_counter(), time.thread_time()
        if on_device(dataset[index]):
            return {"skipped": "the items are on the device already"}
        rows.append((time.perf_counter() - start, time.thread_time() - work))
        if time.perf_counter() - begin > seconds and (len(rows) > 1 or rows[0][0] > _TWICE):
            break
    item_s, work_s = (statistics.fmean(times) for times in zip(*(rows[1:] or rows)))  # noqa: B905
    return {"item_s": item_s, "work_s": work_s}


def _whole(dataset: Any, indices: list[Any], item_s: float, seconds: float) -> dict[str, Any]:
    """Make items several times with different random states, and compare; a dataset may keep its items itself."""
    begin, size, times = time.perf_counter(), 0, [item_s]
    for index in indices:
        item: Any = None
        for draw in range(_DRAWS):
            if draw > 1 and time.perf_counter() - begin > seconds:
                break
            _seed(draw)
            mark, previous, start = random_mark(), item, time.perf_counter()
            item = dataset[index]
            times.append(time.perf_counter() - start)
            if random_mark() != mark or (draw and not same(previous, item)):
                return _until_draw(dataset, indices, item_s, seconds)
        size = max(size, bytes_of(item))
        if time.perf_counter() - begin > seconds:
            break
    return {"kind": "whole", "cached_s": min(item_s, statistics.median(times)), "bytes": size}


def _until_draw(dataset: Any, indices: list[Any], item_s: float, seconds: float) -> dict[str, Any]:
    """Result for an item that draws random numbers: the work before the first draw gives the same result each time."""
    early, shares, begin = [], [], time.perf_counter()
    for index in indices:
        with _first_draw(list(_generators(vars(dataset)))) as draws:
            start = time.perf_counter()
            dataset[index]
            elapsed = time.perf_counter() - start
        if not draws:
            return {"kind": "random"}
        early.append(draws[0] - start)
        shares.append((draws[0] - start) / max(elapsed, 1e-9))
        if time.perf_counter() - begin > seconds:
            break
    # Watching slows both parts alike, so the share of the item is more reliable.
    before = min(statistics.median(early), item_s * statistics.median(shares))
    return {"kind": "before-draw", "cached_s": before}


def _generators(value: Any, depth: int = 2) -> Iterator[Any]:
    """What draws for NumPy's generators and RandomStates among nested values and, to some depth, their attributes."""
    for each in leaves(value):
        source = getattr(each, "bit_generator", None) or getattr(each, "_bit_generator", None)
        if source is not None:
            yield source
        elif depth and hasattr(each, "__dict__") and not isinstance(each, type):
            yield from _generators(vars(each), depth - 1)


def _position(source: Any) -> Any:
    """What changes in a source of random bits with each draw."""
    state = source.state
    return state["state"]["pos"] if "pos" in state["state"] else repr(state)


@contextlib.contextmanager
def _first_draw(generators: list[Any]) -> Iterator[list[float]]:
    """Time of the first random number drawn inside, from Python's, NumPy's or torch's global functions or objects.

    generators: NumPy's, whose draws show in their states only.
    """
    before = [_position(each) for each in generators]
    numpy, draws = sys.modules.get("numpy"), []  # type: ignore[var-annotated]
    names = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal", "uniform_", "normal_"}

    def watch(frame: Any, event: str, function: Any) -> None:
        if draws or event not in ("c_call", "c_return", "call", "return"):
            return
        if any(_position(each) != position for each, position in zip(generators, before)):  # noqa: B905
            draws.append(time.perf_counter())
        if event != "c_call" or draws:
            return
        owner = getattr(function, "__self__", None)
        torch_draws = function.__name__ in names and (owner is None or isinstance(owner, torch.Tensor))
        if isinstance(owner, random.Random) or (torch_draws and not str(function.__module__ or "").startswith("numpy")):
            draws.append(time.perf_counter())

    def marked(draw: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            draws.append(time.perf_counter())
            return draw(*args, **kwargs)

        return call

    # The profiler doesn't see NumPy's functions, so they are replaced here.
    holder = numpy.random if numpy is not None else None
    functions = vars(holder).items() if holder is not None else ()
    drawing = ((name, each) for name, each in functions if name == "default_rng" or hasattr(each, "__self__"))
    originals = {name: each for name, each in drawing if callable(each)}
    previous = sys.getprofile()
    try:
        for name, each in originals.items():
            setattr(holder, name, marked(each))
        sys.setprofile(watch)
        yield draws
    finally:
        sys.setprofile(previous)
        for name, each in originals.items():
            setattr(holder, name, each)


def _prefix(dataset: Any, indices: list[Any], seconds: float) -> dict[str, Any] | None:
    """A MONAI dataset whose transforms begin with ones that aren't random; None for any other dataset."""
    monai_data, transforms = sys.modules.get("monai.data"), sys.modules.get("monai.transforms")
    if monai_data is None or transforms is None or not isinstance(dataset, monai_data.Dataset):
        return None
    if any(kind.__name__ in _CACHES for kind in type(dataset).__mro__):
        return {"skipped": f"{type(dataset).__name__} keeps its results already"}
    compose = getattr(dataset, "transform", None)
    plain = type(dataset).__getitem__ is monai_data.Dataset.__getitem__
    if not isinstance(compose, transforms.Compose) or not plain:
        return None
    count = len(compose.transforms)
    end = compose.get_index_of_first(
        lambda step: isinstance(step, transforms.RandomizableTrait) or not isinstance(step, transforms.Transform)
    )
    end = count if end is None else end
    if end == 0:
        return {"kind": "random"}
    begin, prefixes, size = time.perf_counter(), [], 0
    for index in indices:
        start = time.perf_counter()
        item = compose(dataset.data[index], end=end)
        prefixes.append(time.perf_counter() - start)
        size = max(size, bytes_of(item))
        if time.perf_counter() - begin > seconds:
            break
    names = [type(step).__name__ for step in compose.transforms[:end]]
    known = {"transforms": names, "all_transforms": count, "bytes": size}
    return {"kind": "prefix", "cached_s": statistics.median(prefixes), **known}


def _seed(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)


def same(one: Any, other: Any) -> bool:
    """Whether types and all values are equal; what can't be compared counts as different."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(one[i], other[i]) for i in range(len(one)))
    if hasattr(one, "__array__"):
        numpy = sys.modules["numpy"]
        return bool(numpy.array_equal(numpy.asarray(one), numpy.asarray(other)))
    compares: object = type(one).__eq__
    return one is other or (compares is not object.__eq__ and bool(one == other or one != one))


def bytes_of(value: Any) -> int:
    return sum(int(getattr(each, "nbytes", 64)) for each in leaves(value))
