"""Hasten: train biomedical image segmentation networks in the least wall-clock time, and show where the time went."""

from importlib import import_module
from typing import Any

from hasten.observe.cores import bound_spin

__version__ = "0.1.0"

_HOME = {
    "AsyncValidationHandler": "hasten.engine.workflow",
    "CacheDataset": "hasten.cache.dataset",
    "Checkpoints": "hasten.engine.checkpoint_folder",
    "LMDBDataset": "hasten.cache.lmdb",
    "PersistentDataset": "hasten.cache.persistent",
    "Prepare": "hasten.prepare.transform",
    "Range": "hasten.observe.ranges",
    "RunConfig": "hasten.config.schema",
    "Saver": "hasten.engine.saver",
    "SlidingWindowInferer": "hasten.engine.inferer",
    "SmartCacheDataset": "hasten.cache.smart",
    "SmartCacheHandler": "hasten.engine.workflow",
    "StopRequest": "hasten.engine.stop",
    "SupervisedEvaluator": "hasten.engine.workflow",
    "SupervisedTrainer": "hasten.engine.workflow",
    "ThreadBuffer": "hasten.feed.loader",
    "ThreadDataLoader": "hasten.feed.loader",
    "TrainStep": "hasten.engine.step",
    "Update": "hasten.engine.update",
    "batched_feed": "hasten.feed.batched",
    "compile_transforms": "hasten.augment.compile",
    "evaluate": "hasten.engine.evaluation.evaluate",
    "export_weights": "hasten.engine.export",
    "load_predictor": "hasten.engine.predictor",
    "load_run": "hasten.config.load",
    "make_plan": "hasten.engine.budget",
    "predict": "hasten.engine.predict",
    "restore_state": "hasten.engine.state",
    "spawn_ddp": "hasten.distribute.spawn",
    "train": "hasten.engine.run",
    "train_folds": "hasten.engine.folds",
    "training_state": "hasten.engine.state",
    "write_report": "hasten.report.page",
}

__all__ = ["__version__", *_HOME]

# At once, as torch's libraries read it as they are loaded.
bound_spin()


def __getattr__(name: str) -> Any:
    # Fetched when first asked for: `import hasten`, and so the command line's help, starts without torch.
    if name not in _HOME:
        raise AttributeError(f"module 'hasten' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
