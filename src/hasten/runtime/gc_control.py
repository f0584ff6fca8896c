"""Python's garbage collector, disabled during the steps.

A full collection looks at every object of the process, tens of milliseconds with torch and MONAI loaded, at a moment
that it chooses; under several ranks all wait for the one that collects.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def collected_between_steps() -> Iterator[Callable[[], object]]:
    """Inside the block only the yielded function collects garbage; call it between steps.

    Objects alive at the beginning are not traversed again. Afterwards the collector is as it was before; but where the
    caller had frozen objects all stay frozen, since Python has no way to unfreeze some.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()
