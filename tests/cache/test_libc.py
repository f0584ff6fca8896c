from __future__ import annotations

from mmap import PAGESIZE
from pathlib import Path

import torch

from hasten.cache.libc import Span, map_files, read_ahead


def spans(folder: Path) -> list[Span]:
    (folder / "a").write_bytes(b"a" * 10)
    (folder / "b").write_bytes(b"b" * (PAGESIZE + 1))
    (folder / "c").write_bytes(b"")
    return [Span(folder / "a", 0, 10), Span(folder / "b", PAGESIZE, PAGESIZE + 1), Span(folder / "c", 3 * PAGESIZE, 0)]


def test_files_lie_in_one_range_with_zeros_between(tmp_path: Path) -> None:
    size = 3 * PAGESIZE + 5
    flat = torch.frombuffer(map_files(spans(tmp_path), size), dtype=torch.uint8)
    wanted = (b"a" * 10).ljust(PAGESIZE, b"\0") + b"b" * (PAGESIZE + 1)
    assert flat.numpy().tobytes() == wanted.ljust(size, b"\0")
    read_ahead(flat.data_ptr() + 3, 2 * PAGESIZE)


def test_a_mapping_ends_with_its_last_view_and_holds_no_file_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    flat = torch.frombuffer(map_files(spans(tmp_path), 3 * PAGESIZE), dtype=torch.uint8)
    view = flat[5:8]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    del flat
    assert view.tolist() == [97] * 3
    assert str(tmp_path / "b") in Path("/proc/self/maps").read_text()
    del view
    assert str(tmp_path / "b") not in Path("/proc/self/maps").read_text()
