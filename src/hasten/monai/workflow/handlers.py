"""A handler for ignite's engines, MONAI's trainers and Hasten's."""

from __future__ import annotations

from typing import Any

from ignite.engine import Events


class SmartCacheHandler:
    """MONAI's handler of this name, which takes no data set but MONAI's own, for `hasten.SmartCacheDataset`."""

    def __init__(self, smartcacher: Any) -> None:
        missing = [name for name in ("start", "update_cache", "shutdown") if not hasattr(smartcacher, name)]
        if missing:
            raise ValueError(
                f"smartcacher: {type(smartcacher).__name__} has no {missing[0]}(); give a SmartCacheDataset"
            )
        self.smartcacher = smartcacher

    def attach(self, engine: Any) -> None:
        """Prepare replacements while `engine` runs, and swap them in after each of its epochs."""
        engine.add_event_handler(Events.STARTED, lambda: self.smartcacher.start())
        engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: self.smartcacher.update_cache())
        engine.add_event_handler(Events.COMPLETED, lambda: self.smartcacher.shutdown())
