"""nnU-Net's trainer, whose batches come from batchgenerators: how long it waits for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .on_data import wait_for
from .session import Session
from .wrap import around

_LOADERS = {
    "nondet_multi_threaded_augmenter": "NonDetMultiThreadedAugmenter",
    "single_threaded_augmenter": "SingleThreadedAugmenter",
}
"""By module of batchgenerators.dataloading."""


def watch(session: Session) -> None:
    """Called after the first step, when all that trains is imported."""
    if "nnunetv2.training.nnUNetTrainer.nnUNetTrainer" not in sys.modules:
        return
    for module, name in _LOADERS.items():
        loader = getattr(sys.modules.get(f"batchgenerators.dataloading.{module}"), name, None)
        around(session, loader, "__next__", _next)
    session.uses["nnunet"] = {"arguments": sys.argv[1:], "hasten": "hasten.nnunet.batches" in sys.modules}


def _next(session: Session, original: Callable[..., Any], self: Any) -> Any:
    return wait_for(session, None, lambda: original(self))
