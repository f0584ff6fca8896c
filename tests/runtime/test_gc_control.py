from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from hasten.runtime.gc_control import collected_between_steps


class Knot:
    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Without the suite's own frozen objects."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_rubbish_waits_until_it_is_asked_for() -> None:
    with collected_between_steps() as collect:
        assert not gc.isenabled()
        seen = weakref.ref(Knot())
        _ = [Knot() for _ in range(5000)]
        assert seen() is not None
        collect()
        assert seen() is None
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_collector_is_given_back_after_an_error_and_stays_off_where_it_was() -> None:
    with pytest.raises(RuntimeError), collected_between_steps():
        raise RuntimeError
    assert gc.isenabled()
    gc.disable()
    try:
        with collected_between_steps():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
