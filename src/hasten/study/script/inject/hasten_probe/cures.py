"""Cures that can be applied from outside: `apply(name)` patches torch before the script builds anything.

A name may carry a value, `workers=2`. `apply` returns a description of the patch; ValueError for an unknown name.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from .exp_items import first_random
from .exp_time import memory
from .nested import in_channels_last, mapped

_ROOM = 0.2
"""Share of the memory that stays free; once it is reached, no more items are cached."""


def apply(name: str) -> str:
    key, _, value = name.partition("=")
    if key not in CURES:
        raise ValueError(f"unknown cure {name!r}; there are {', '.join(sorted(CURES))}")
    return CURES[key](value)


def _loader_options(change: Callable[[dict[str, Any]], None], first: bool = False) -> None:
    """Let `change` edit the arguments, by name, of every map-style loader; `first` before all other changes."""
    original = DataLoader.__init__
    existing = getattr(original, "_hasten_changes", None)
    if existing is not None:
        existing.insert(0 if first else len(existing), change)
        return
    signature, changes = inspect.signature(original), [change]

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        options = dict(bound.arguments)
        options.pop("self", None)
        options.update(options.pop("kwargs", {}))
        if not isinstance(options["dataset"], IterableDataset):
            for each in changes:
                each(options)
        original(self, **options)

    vars(__init__)["_hasten_changes"] = changes
    DataLoader.__init__ = __init__  # type: ignore[method-assign]


def _workers(value: str) -> str:
    count = int(value or 2)

    def change(options: dict[str, Any]) -> None:
        options["num_workers"] = count
        if count:
            options["persistent_workers"] = True
            options.setdefault("multiprocessing_context", "fork")
        else:
            for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout"):
                options.pop(name, None)

    _loader_options(change, first=True)
    return f"every map-style loader gets num_workers={count}, persistent_workers=True"


def _with_workers(name: str, value: Any) -> None:
    """Set this option of loaders that have workers."""
    _loader_options(lambda options: options.update({name: value} if options.get("num_workers") else {}))


def _prefetch(value: str) -> str:
    count = int(value or 8)
    _with_workers("prefetch_factor", count)
    return f"loaders with workers get prefetch_factor={count}"


def _persistent_workers(value: str) -> str:
    _with_workers("persistent_workers", True)
    return "loaders with workers keep them between passes"


def _pin_memory(value: str) -> str:
    if not torch.cuda.is_available():
        raise ValueError("pin-memory needs a CUDA device")
    _loader_options(lambda options: options.update(pin_memory=True))
    return "every map-style loader gets pin_memory=True"


def _cache_items(value: str) -> str:
    _loader_options(lambda options: options.update(dataset=_caching_items(options["dataset"])))
    return "the items of map-style datasets are kept once made"


def _cache_transforms(value: str) -> str:
    _loader_options(lambda options: options.update(dataset=_caching_prefix(options["dataset"])))
    return "MONAI datasets keep what their transforms before the first random one made"


class _BoundedCache(dict[Any, Any]):
    def put(self, key: Any, value: Any) -> None:
        if len(self) % 64 == 0:
            free, total = memory()
            self.full = bool(total) and free < _ROOM * total
        if not self.full:
            self[key] = value


def _caching_items(dataset: Any) -> Any:
    """Make each item once, then return copies, since collate functions and callers may write into it."""
    kind = type(dataset)
    if not hasattr(kind, "__getitem__") or not hasattr(kind, "__len__") or hasattr(dataset, "_hasten_cache"):
        return dataset

    def __getitem__(self: Any, index: Any) -> Any:
        cached = self._hasten_cache
        if index not in cached:
            item = kind.__getitem__(self, index)
            cached.put(index, copy.deepcopy(item))
            return item
        return copy.deepcopy(cached[index])

    members: dict[str, Any] = {"__getitem__": __getitem__}
    if hasattr(kind, "__getitems__"):
        members["__getitems__"] = lambda self, indices: [self[index] for index in indices]
    return _with_members(dataset, members)


def _caching_prefix(dataset: Any) -> Any:
    """Let a MONAI `Dataset` cache its items before the first random transform, as a `CacheDataset` does."""
    monai_data, transforms = sys.modules.get("monai.data"), sys.modules.get("monai.transforms")
    if monai_data is None or transforms is None or not isinstance(dataset, monai_data.Dataset):
        return dataset
    compose, kind = getattr(dataset, "transform", None), type(dataset)
    plain = kind._transform is monai_data.Dataset._transform
    if not isinstance(compose, transforms.Compose) or not plain or hasattr(dataset, "_hasten_cache"):
        return dataset
    end = first_random(compose, transforms)

    def _transform(self: Any, index: int) -> Any:
        cached = self._hasten_cache
        prefix = cached.get(index)
        if prefix is None:
            prefix = compose(self.data[index], end=end)
            cached.put(index, prefix)
        return compose(copy.deepcopy(prefix), start=end) if end < len(compose.transforms) else copy.deepcopy(prefix)

    return _with_members(dataset, {"_transform": _transform})


def _with_members(dataset: Any, members: dict[str, Any]) -> Any:
    """Give the object a subclass with the same name and module, so that checks of its type still work."""
    kind = type(dataset)
    try:
        dataset._hasten_cache = _BoundedCache()
        dataset.__class__ = type(kind.__name__, (kind,), {**members, "__module__": kind.__module__})
    except (AttributeError, TypeError):
        return dataset
    return dataset


def _fused_optimizer(value: str) -> str:
    kinds = [
        kind
        for kind in vars(torch.optim).values()
        if inspect.isclass(kind) and "fused" in inspect.signature(kind.__init__).parameters
    ]
    for kind in kinds:
        _fuse(kind)
    return f"fused=True in {', '.join(sorted(kind.__name__ for kind in kinds))}"


def _fuse(kind: type) -> None:
    original = kind.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def __init__(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        # A generator of parameters can be read only once.
        # AdamW calls Adam's constructor, so only the outermost class is changed.
        params = [_listed(group) for group in params]
        requested = kwargs.get("fused") is not None or kwargs.get("differentiable")
        if type(self) is kind and not requested and _fusable(params):
            with contextlib.suppress(RuntimeError, TypeError):
                original(self, params, *args, **{**kwargs, "fused": True, "foreach": None})
                return
        original(self, params, *args, **kwargs)

    kind.__init__ = __init__  # type: ignore[misc]


def _fusable(params: list[Any]) -> bool:
    """Whether the first step accepts these parameters; the constructor doesn't check all of it."""
    each = [p for group in params for p in (group["params"] if isinstance(group, dict) else [group])]
    # With names: (name, parameter).
    each = [p[1] if isinstance(p, tuple) else p for p in each]
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in each)


def _listed(group: Any) -> Any:
    if isinstance(group, dict) and not isinstance(group["params"], torch.Tensor):
        return {**group, "params": list(group["params"])}
    return group


def _set_to_none(value: str) -> str:
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        original = kind.zero_grad

        def zero_grad(self: Any, set_to_none: bool = True, original: Any = original) -> None:
            original(self, set_to_none=True)

        kind.zero_grad = functools.wraps(original)(zero_grad)  # type: ignore[method-assign]
    return "zero_grad always forgets the gradients"


def _cudnn_benchmark(value: str) -> str:
    torch.backends.cudnn.benchmark = True
    setting = vars(type(torch.backends.cudnn)).get("benchmark")
    if setting is not None and hasattr(setting, "setter"):
        setting.setter = lambda _: None
    return "torch.backends.cudnn.benchmark is True and stays so"


def _no_empty_cache(value: str) -> str:
    torch.cuda.empty_cache = lambda: None
    return "torch.cuda.empty_cache does nothing"


def _no_gc_collect(value: str) -> str:
    gc.collect = lambda generation=2: 0
    return "gc.collect does nothing"


def _no_anomaly(value: str) -> str:
    detect, switch = torch.autograd.detect_anomaly, torch.autograd.set_detect_anomaly
    original = switch.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        torch.set_anomaly_enabled(False)

    switch.__init__ = __init__  # type: ignore[method-assign]
    detect.__enter__ = lambda self: None  # type: ignore[method-assign]
    return "anomaly detection stays off"


def _around_roots(call: Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """`call(module, original, args, kwargs)` in place of each outermost call of a module that has parameters.

    A loss has none and is left as it is.
    """
    original = nn.Module.__call__
    depth = [0]

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if depth[0] or next(self.parameters(), None) is None:
            return original(self, *args, **kwargs)
        depth[0] += 1
        try:
            return call(self, original, args, kwargs)
        finally:
            depth[0] -= 1

    nn.Module.__call__ = __call__  # type: ignore[method-assign]


def _autocast(dtype: str) -> str:
    """Forward under autocast, with float32 outputs as the script's loss expects."""
    if dtype not in ("", "bf16", "bfloat16"):
        raise ValueError(f"autocast={dtype}: only bfloat16 can be applied from outside, as float16 needs a GradScaler")

    def call(module: nn.Module, original: Any, args: Any, kwargs: Any) -> Any:
        kind = next(module.parameters()).device.type
        cast = (
            contextlib.nullcontext() if torch.is_autocast_enabled(kind) else torch.autocast(kind, dtype=torch.bfloat16)
        )
        with cast:
            outputs = original(module, *args, **kwargs)
        return mapped(outputs, lambda tensor: tensor.float() if tensor.dtype is torch.bfloat16 else tensor)

    _around_roots(call)
    return "networks run under autocast in bfloat16, outputs in float32"


def _channels_last(value: str) -> str:
    converted: set[int] = set()

    def call(module: nn.Module, original: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in converted:
            converted.add(id(module))
            for parameter in module.parameters():
                parameter.data = in_channels_last(parameter.data)
        return original(module, *mapped(args, in_channels_last), **mapped(kwargs, in_channels_last))

    _around_roots(call)
    return "networks and their inputs are laid out in channels_last"


class _Off:
    """Stands in for a profiler: accepts every call and returns itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> _Off:
        return self

    __enter__ = __call__

    def __exit__(self, *args: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __str__(self) -> str:
        return "(the profiler was left out)"


def _no_profiler(value: str) -> str:
    import torch.profiler

    torch.profiler.profile = _Off  # type: ignore[misc, assignment]
    torch.autograd.profiler.profile = _Off  # type: ignore[misc, assignment]
    torch.autograd.profiler.emit_nvtx = _Off  # type: ignore[misc, assignment]
    return "profilers and emit_nvtx are left out"


def _no_gradcheck(value: str) -> str:
    torch.autograd.gradcheck = lambda *args, **kwargs: True
    torch.autograd.gradgradcheck = lambda *args, **kwargs: True
    return "gradcheck is left out"


CURES: dict[str, Callable[[str], str]] = {
    "workers": _workers,
    "prefetch": _prefetch,
    "persistent-workers": _persistent_workers,
    "pin-memory": _pin_memory,
    "cache-items": _cache_items,
    "cache-transforms": _cache_transforms,
    "autocast": _autocast,
    "channels-last": _channels_last,
    "cudnn-benchmark": _cudnn_benchmark,
    "fused-optimizer": _fused_optimizer,
    "set-to-none": _set_to_none,
    "no-empty-cache": _no_empty_cache,
    "no-gc-collect": _no_gc_collect,
    "no-anomaly": _no_anomaly,
    "no-profiler": _no_profiler,
    "no-gradcheck": _no_gradcheck,
}
