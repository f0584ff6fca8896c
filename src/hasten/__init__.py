"""Hasten: train biomedical image segmentation networks in the least wall-clock time, and show where the time went."""

from importlib import import_module
from typing import Any

from hasten.observe.cores import allow_mps_fallback, bound_spin

__version__ = "0.1.0"

_HOME = {
    "CacheDataset": "hasten.cache.dataset",
    "Checkpoints": "hasten.checkpoint.file",
    "LMDBDataset": "hasten.monai.persistent",
    "PersistentDataset": "hasten.monai.persistent",
    "Range": "hasten.observe.ranges",
    "RunConfig": "hasten.config.schema",
    "Saver": "hasten.checkpoint.saver",
    "SlidingWindowInferer": "hasten.monai.inferer",
    "SmartCacheDataset": "hasten.monai.smart",
    "SmartCacheHandler": "hasten.monai.smart",
    "StopRequest": "hasten.training.stop",
    "SupervisedEvaluator": "hasten.monai.workflow",
    "SupervisedTrainer": "hasten.monai.workflow",
    "ThreadBuffer": "hasten.monai.thread_loader",
    "ThreadDataLoader": "hasten.monai.thread_loader",
    "TrainStep": "hasten.training.step",
    "Update": "hasten.training.update",
    "compile_transforms": "hasten.augment.from_monai",
    "evaluate": "hasten.evaluation.evaluate",
    "export_weights": "hasten.prediction.export",
    "load_predictor": "hasten.prediction.predict",
    "load_run": "hasten.config.load",
    "make_plan": "hasten.training.choose.budget",
    "predict": "hasten.prediction.predict",
    "restore_state": "hasten.checkpoint.state",
    "train": "hasten.training.run",
    "train_folds": "hasten.training.folds",
    "training_state": "hasten.checkpoint.state",
    "warm": "hasten.training.warm",
    "write_report": "hasten.report.page",
}

__all__ = ["__version__", *_HOME]

# At once, as torch's libraries read it as they are loaded.
bound_spin()
allow_mps_fallback()


def __getattr__(name: str) -> Any:
    # Fetched when first asked for: `import hasten`, and so the command line's help, starts without torch.
    if name not in _HOME:
        raise AttributeError(f"module 'hasten' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
