"""Mappings that are used again hold what the file holds, whatever was done to them."""

from __future__ import annotations

import os
import random
from collections import deque
from pathlib import Path
from typing import NamedTuple

import pytest

from hasten.cache.mappings import Mappings, is_changed, mapping_slots

SIZE = 5 * 4096 + 100
CONTENT = random.Random(0).randbytes(SIZE)


class Range(NamedTuple):
    mappings: Mappings
    handle: int

    def take(self) -> memoryview:
        return self.mappings.take(self.handle)

    @property
    def free(self) -> deque[int]:
        return self.mappings.free

    def close(self) -> None:
        self.mappings.close()


@pytest.fixture
def mappings(tmp_path: Path) -> Range:
    (tmp_path / "file").write_bytes(b"x" * 4096 + CONTENT)
    return Range(Mappings(SIZE, 4096, mapping_slots()), os.open(tmp_path / "file", os.O_RDONLY))


def mapped(mappings: Range) -> int:
    name = os.readlink(f"/proc/self/fd/{mappings.handle}")  # noqa: PTH115
    return sum(line.endswith(name) for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("place", [None, 0, 4096, SIZE - 1])
def test_a_mapping_is_used_again_without_its_changes(mappings: Range, place: int | None) -> None:
    view = mappings.take()
    assert bytes(view) == CONTENT
    if place is not None:
        view[place] ^= 255
    del view
    assert len(mappings.free) == 1
    address = mappings.free[0]
    assert is_changed(address, SIZE) == (place is not None)
    assert bytes(mappings.take()) == CONTENT
    assert mappings.free[0] == address
    assert mapped(mappings) == 1


def test_who_does_not_learn_of_changes_drops_the_pages(mappings: Range, monkeypatch: pytest.MonkeyPatch) -> None:
    view = mappings.take()
    view[7] ^= 255
    del view

    def no_access(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr("hasten.cache.mappings.os.open", no_access)
    assert bytes(mappings.take()) == CONTENT


def test_views_held_at_the_same_time_are_apart(mappings: Range) -> None:
    one, other, third = mappings.take(), mappings.take(), mappings.take()
    one[0] ^= 255
    assert bytes(other) == CONTENT
    assert mapped(mappings) == 3
    del one, other, third
    assert mapped(mappings) == 2  # no more are kept
    mappings.close()
    assert mapped(mappings) == 0


def test_closing_leaves_what_is_in_use(mappings: Range) -> None:
    view = mappings.take()
    mappings.close()
    assert bytes(view) == CONTENT
    del view
    assert mapped(mappings) == 0


def test_after_a_fork_each_process_has_its_own(mappings: Range) -> None:
    held = mappings.take()
    view = mappings.take()
    view[0] ^= 255
    del view
    child = os.fork()
    if child == 0:
        fine = bytes(mappings.take()) == CONTENT
        held[5] ^= 255
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(held) == CONTENT
    assert bytes(mappings.take()) == CONTENT


def test_no_more_wait_than_there_is_room_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    handle, slots = os.open(tmp_path / "file", os.O_RDONLY), mapping_slots(3)
    ranges = [Mappings(SIZE, 0, slots) for _ in range(5)]
    for _ in range(3):
        for each in ranges:
            assert bytes(each.take(handle)) == CONTENT
        assert [len(each.free) for each in ranges] == [1, 1, 1, 0, 0]
        assert len(slots) == 0
    del ranges[:2], each
    assert len(slots) == 2
