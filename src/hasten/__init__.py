"""Hasten: train biomedical image segmentation networks in the least wall-clock time, and show where the time went."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "CacheDataset": "hasten.cache.dataset",
    "LMDBDataset": "hasten.cache.lmdb",
    "PersistentDataset": "hasten.cache.persistent",
    "Prepare": "hasten.prepare.transform",
    "RunConfig": "hasten.config.schema",
    "SmartCacheDataset": "hasten.cache.smart",
    "ThreadDataLoader": "hasten.feed.loader",
    "batched_feed": "hasten.feed.batched",
    "compile_transforms": "hasten.augment.compile",
    "load_run": "hasten.config.load",
    "make_plan": "hasten.engine.run",
    "train": "hasten.engine.run",
    "tune_loader": "hasten.feed.tune_loader",
    "predict": "hasten.engine.predict",
    "write_report": "hasten.report.page",
}

__all__ = [
    "CacheDataset",
    "LMDBDataset",
    "PersistentDataset",
    "Prepare",
    "RunConfig",
    "SmartCacheDataset",
    "ThreadDataLoader",
    "__version__",
    "batched_feed",
    "compile_transforms",
    "load_run",
    "make_plan",
    "predict",
    "train",
    "tune_loader",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # Fetched when first asked for: `import hasten`, and so the command line's help, starts without torch.
    if name not in _HOME:
        raise AttributeError(f"module 'hasten' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
