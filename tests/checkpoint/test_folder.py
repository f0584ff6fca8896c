from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.checkpoint import folder as checkpoint_folder
from hasten.checkpoint.folder import Checkpoints


def content(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((100,), float(step))}


def test_the_newest_lies_under_one_name_and_other_files_are_left_alone(tmp_path: Path) -> None:
    others = ["best.pt", "last-good.pt", ".best.pt.ab12", "notes"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".last.pt.0a1b2c3d").write_bytes(b"half")  # what a kill left half-written
    made = Checkpoints(tmp_path)
    assert made.newest() is None
    for step in (10, 20, 30):
        made.write(content(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "last.pt"])
    result = made.newest()
    assert result is not None
    assert (result.path, result.step) == (tmp_path / "last.pt", 30)
    assert torch.equal(result.content["weights"], content(30)["weights"])


def test_a_failed_write_leaves_the_one_before_and_a_damaged_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Checkpoints(tmp_path)
    made.write(content(10))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "write_checkpoint", fail)
        with pytest.raises(OSError, match="No space"):
            made.write(content(20))
    result = made.newest()
    assert result is not None
    assert result.step == 10
    data = bytearray(made.path.read_bytes())
    data[len(data) // 2] ^= 1
    made.path.write_bytes(data)
    with pytest.raises(ValueError, match=r"last\.pt: damaged"):
        made.newest()
