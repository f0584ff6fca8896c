"""Experiments on the items of the dataset: which work is done again, with the same result, in every epoch."""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from .exp_loader import index_batches, on_device, training_loader
from .exp_time import memory, random_mark
from .nested import leaves

_DRAWS = 4
"""Number of times an item is made before it counts as constant."""
_SEARCHES = ("RandCropByPosNegLabeld", "RandCropByPosNegLabelD", "RandCropByPosNegLabelDict")
_CACHES = ("CacheDataset", "PersistentDataset", "CacheNTransDataset", "LMDBDataset", "SmartCacheDataset", "GDSDataset")


def items(session: Any, seconds: float) -> dict[str, Any]:
    """Test whether an item, or its first part, is the same each time, what it costs, and whether the results fit."""
    loader, site = training_loader(session)
    if loader is None:
        return {"skipped": "no DataLoader"}
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return {"skipped": "an iterable dataset has no items"}
    indices = index_batches(loader, 4)
    if loader.batch_sampler is not None:
        indices = [index for batch in indices for index in batch]
    indices = list(dict.fromkeys(indices))[:8]
    result = _prefix(dataset, indices, seconds) or _whole(dataset, indices, seconds)
    result.update(site=site, batch_size=loader.batch_size or 1, workers=loader.num_workers)
    if "bytes" in result:
        result.update(items=len(dataset), free_bytes=memory()[0])
    return result


def _whole(dataset: Any, indices: list[Any], seconds: float) -> dict[str, Any]:
    """Make items several times with different random states, and compare."""
    begin = time.perf_counter()
    times: list[float] = []
    size = checked = 0
    for index in indices:
        first, count = None, 0
        for draw in range(_DRAWS):
            if times and time.perf_counter() - begin > seconds / 2:
                break
            _seed(draw)
            mark = random_mark()
            start = time.perf_counter()
            item = dataset[index]
            times.append(time.perf_counter() - start)
            if on_device(item):
                return {"skipped": "the items are on the device already"}
            if random_mark() != mark or (count and not same(first, item)):
                return _until_draw(dataset, indices, statistics.median(times), seconds / 2)
            first, count = item, count + 1
        if count < 2:
            break
        checked += 1
        size = max(size, bytes_of(first))
    if not checked:
        return {"skipped": "one item takes too long to be made twice"}
    item_s = statistics.median(times)
    return {"kind": "whole", "item_s": item_s, "cached_s": item_s, "bytes": size, "checked": checked}


def _until_draw(dataset: Any, indices: list[Any], item_s: float, seconds: float) -> dict[str, Any]:
    """Result for an item that draws random numbers: the work before the first draw gives the same result each time."""
    early, shares, begin = [], [], time.perf_counter()
    for index in indices:
        with _first_draw() as draws:
            start = time.perf_counter()
            dataset[index]
            elapsed = time.perf_counter() - start
        if not draws:
            return {"kind": "random", "item_s": item_s}
        early.append(draws[0] - start)
        shares.append((draws[0] - start) / max(elapsed, 1e-9))
        if time.perf_counter() - begin > seconds:
            break
    # Watching slows both parts alike, so the share of the item is more reliable.
    before = min(statistics.median(early), item_s * statistics.median(shares))
    return {"kind": "before-draw", "item_s": item_s, "cached_s": before, "checked": len(early)}


@contextlib.contextmanager
def _first_draw() -> Iterator[list[float]]:
    """Time of the first random number drawn inside, from Python's, NumPy's or torch's global functions or objects."""
    numpy, draws = sys.modules.get("numpy"), []  # type: ignore[var-annotated]
    names = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal", "uniform_", "normal_"}

    def watch(frame: Any, event: str, function: Any) -> None:
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
    originals = {name: each for name, each in functions if callable(each) and hasattr(each, "__self__")}
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
        return _foreground(dataset) or {"skipped": f"{type(dataset).__name__} keeps its results already"}
    compose = getattr(dataset, "transform", None)
    plain = type(dataset).__getitem__ is monai_data.Dataset.__getitem__
    if not isinstance(compose, transforms.Compose) or not plain:
        return None
    count = len(compose.transforms)
    end = first_random(compose, transforms)
    if end == 0:
        return {"kind": "random", "item_s": None}
    begin, prefixes, wholes, size = time.perf_counter(), [], [], 0
    for index in indices:
        start = time.perf_counter()
        item = compose(dataset.data[index], end=end)
        middle = time.perf_counter()
        size = max(size, bytes_of(item))
        between = time.perf_counter()
        if end < count:
            compose(item, start=end)
        prefixes.append(middle - start)
        wholes.append(middle - start + time.perf_counter() - between)
        if time.perf_counter() - begin > seconds:
            break
    names = [type(step).__name__ for step in compose.transforms[:end]]
    return {
        "kind": "prefix",
        "item_s": statistics.median(wholes),
        "cached_s": statistics.median(prefixes),
        "transforms": names,
        "all_transforms": count,
        "bytes": size,
        "checked": len(prefixes),
    }


def first_random(compose: Any, transforms: Any) -> int:
    """Index of the first transform that is, or may be, random; their number if none is. transforms: MONAI's module."""
    end = compose.get_index_of_first(
        lambda step: isinstance(step, transforms.RandomizableTrait) or not isinstance(step, transforms.Transform)
    )
    return len(compose.transforms) if end is None else int(end)


def _foreground(dataset: Any) -> dict[str, Any] | None:
    """Crops that search the foreground at every call, as its indices weren't computed beforehand."""
    transforms = getattr(getattr(dataset, "transform", None), "transforms", ())
    crop = next((each for each in transforms if type(each).__name__ in _SEARCHES and not each.fg_indices_key), None)
    cache = getattr(dataset, "_cache", None)
    if crop is None or not cache:
        return None
    utils = sys.modules["monai.transforms.utils"]
    threshold = getattr(crop, "cropper", crop).image_threshold
    times, wholes = [], []
    for index, item in enumerate(list(cache)[:4]):
        start = time.perf_counter()
        dataset[index]
        wholes.append(time.perf_counter() - start)
        start = time.perf_counter()
        utils.map_binary_to_indices(item[crop.label_key], item.get(crop.image_key), threshold)
        times.append(time.perf_counter() - start)
    whole = statistics.median(wholes)
    result = {"kind": "foreground", "item_s": whole, "cached_s": min(whole, statistics.median(times))}
    return {**result, "checked": len(times)}


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
    if isinstance(one, (int, float, complex, str, bytes, bool)) or one is None:
        return one == other or one != one
    compares: object = type(one).__eq__
    return compares is not object.__eq__ and bool(one == other)


def bytes_of(value: Any) -> int:
    return sum(int(getattr(each, "nbytes", 64)) for each in leaves(value))
