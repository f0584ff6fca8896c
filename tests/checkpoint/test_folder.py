from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.checkpoint import folder as checkpoint_folder
from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.checkpoint.folder import Checkpoints


def content(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((100,), float(step))}


def filled(folder: Path, *steps: int, keep: int = 3) -> Checkpoints:
    made = Checkpoints(folder, keep=keep)
    for step in steps:
        made.write(content(step))
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # its other names keep what they have
    path.write_bytes(data)


def test_one_is_kept_under_one_name(tmp_path: Path) -> None:
    made = filled(tmp_path, 10, 20, 30, keep=1)
    assert names(tmp_path) == ["last.pt"]
    result = made.newest()
    assert result is not None
    assert (result.path, result.step) == (tmp_path / "last.pt", 30)
    assert torch.equal(result.content["weights"], content(30)["weights"])


@pytest.mark.parametrize("again", [False, True])
def test_older_ones_have_their_step_in_their_name(tmp_path: Path, again: bool) -> None:
    """The same where each is written by a process of its own."""
    for step in (8, 9, 10, 110):
        if again or step == 8:
            made = Checkpoints(tmp_path, keep=3)
        made.write(content(step))
    assert names(tmp_path) == ["last-00000009.pt", "last-00000010.pt", "last.pt"]
    assert [read_checkpoint(path)["step"] for path in made.paths()] == [110, 10, 9]


@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_newest_is_named_and_the_next_older_taken(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = filled(tmp_path, 10, 20, 30)
    bad = made.paths()[:number]
    for path in bad:
        damage(path)
    with caplog.at_level(logging.WARNING):
        result = Checkpoints(tmp_path, keep=3).newest()
    assert result is not None
    assert result.step == 30 - 10 * number
    assert result.path.name == f"last-{result.step:08d}.pt"
    assert len(caplog.messages) == number
    for path, message in zip(bad, caplog.messages, strict=True):
        assert message.startswith(f"{path}: damaged")
        assert f"{result.path.name} of step {result.step} taken" in message


@pytest.mark.parametrize("asked", [False, True])
def test_a_damaged_newest_is_not_kept_as_an_older_one(tmp_path: Path, asked: bool) -> None:
    filled(tmp_path, 10, 20)
    damage(tmp_path / "last.pt")
    made = Checkpoints(tmp_path, keep=3)
    if asked:
        made.newest()
    made.write(content(15))
    assert names(tmp_path) == ["last-00000010.pt", "last.pt"]
    assert [read_checkpoint(path)["step"] for path in made.paths()] == [15, 10]


def test_if_all_are_damaged_the_newest_is_named(tmp_path: Path) -> None:
    made = filled(tmp_path, 10, 20)
    for path in made.paths():
        damage(path)
    with pytest.raises(ValueError, match=r"last\.pt: damaged"):
        made.newest()


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_nothing_is_removed_before_the_new_one_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled(tmp_path, 10, 20, 30)
    seen: list[list[int]] = []

    def write(path: Path, new: dict[str, Any]) -> None:
        write_checkpoint(path, new)
        seen.append([read_checkpoint(path)["step"] for path in made.paths()])

    monkeypatch.setattr(checkpoint_folder, "write_checkpoint", write)
    made.write(content(40))
    assert seen == [[40, 30, 20, 10]]
    assert [read_checkpoint(path)["step"] for path in made.paths()] == [40, 30, 20]


def test_processes_that_are_killed_before_they_remove_any_leave_one_more_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(10, 90, 10):
        made = Checkpoints(tmp_path, keep=3)
        plain = made._prune
        # All but the last one, which would have followed the new checkpoint.
        monkeypatch.setattr(made, "_prune", lambda at, plain=plain, step=step: None if at == step else plain(at))
        made.write(content(step))
        assert [read_checkpoint(path)["step"] for path in made.paths()] == list(range(step, 0, -10))[:4]


def test_without_links_the_newest_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "hardlink_to", fail)
    made = filled(tmp_path, 10, 20, 30)
    assert [read_checkpoint(path)["step"] for path in made.paths()] == [30, 20, 10]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "write_checkpoint", fail)
        with pytest.raises(OSError, match="No space"):
            made.write(content(40))
    result = made.newest()  # there is no last.pt now
    assert result is not None
    assert result.step == 30
    made.write(content(40))
    assert [read_checkpoint(path)["step"] for path in made.paths()] == [40, 30, 20]


def test_what_a_kill_left_half_written_is_swept_away(tmp_path: Path) -> None:
    for name in (".last.pt.0a1b2c3d", ".last-00000010.pt.0a1b2c3d", ".best.pt.0a1b2c3d"):
        (tmp_path / name).write_bytes(b"half")
    made = Checkpoints(tmp_path)
    assert made.newest() is None
    made.write(content(1))
    assert names(tmp_path) == [".best.pt.0a1b2c3d", "last.pt"]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    others = ["best.pt", "last-good.pt", "last-00000001.pt.txt", ".best.pt.ab12", "notes"]
    for name in others:
        (tmp_path / name).write_text("mine")
    filled(tmp_path, 1, 2, 3, keep=1)
    assert names(tmp_path) == sorted([*others, "last.pt"])


def test_those_of_a_course_that_was_given_up_go(tmp_path: Path) -> None:
    """Taken back to step 10 by hand, the run writes step 15: 20 and 30 are not its past."""
    filled(tmp_path, 10, 20, 30, 40)
    (tmp_path / "last.pt").unlink()
    (tmp_path / "last-00000030.pt").unlink()
    write_checkpoint(tmp_path / "last.pt", content(10))
    filled(tmp_path, 15)
    assert names(tmp_path) == ["last-00000010.pt", "last.pt"]


def test_a_failed_write_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled(tmp_path, 10, 20, 30)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_folder, "write_checkpoint", fail)
            with pytest.raises(OSError, match="No space"):
                made.write(content(40))
        assert [read_checkpoint(path)["step"] for path in made.paths()] == [30, 30, 20, 10]
    made.write(content(40))
    assert [read_checkpoint(path)["step"] for path in made.paths()] == [40, 30, 20]
