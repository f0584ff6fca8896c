"""nnU-Net's trainer, whose batches come from batchgenerators: how long it waits for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .on_data import _wait
from .session import Session
from .wrap import wrap

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
        if loader is not None:
            wrap(loader, "__next__", lambda original: _next(session, original))
    session.uses["nnunet"] = {"arguments": sys.argv[1:], "hasten": "hasten.nnunet.batches" in sys.modules}


def _next(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(self: Any) -> Any:
        if not session.live():
            return original(self)
        return _wait(session, None, lambda: original(self))

    return __next__
