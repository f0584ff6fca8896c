from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import pickle
import random
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.checkpoint.file import Checkpoints, read_checkpoint, write_checkpoint

TRAILER = 40
SAMPLES = 300


def content(value: float = 1.0) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "step": 7,
        "weights": {"a": torch.randn(3, 4), "b": torch.full((2,), value)},
        "best": {"value": math.nan, "step": 0},
        "nothing": None,
        "names": ["x", "y"],
        "random_state": torch.get_rng_state(),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "last.pt"
    write_checkpoint(path, content())
    return path


def assert_is_content(actual: dict[str, Any], value: float = 1.0) -> None:
    expected = content(value)
    assert actual.keys() == expected.keys()
    assert actual["step"] == 7
    assert actual["nothing"] is None
    assert actual["names"] == ["x", "y"]
    assert math.isnan(actual["best"]["value"])
    assert torch.equal(actual["random_state"], expected["random_state"])
    for name, tensor in expected["weights"].items():
        assert torch.equal(actual["weights"][name], tensor)


def test_round_trip(saved: Path) -> None:
    assert_is_content(read_checkpoint(saved))
    assert list(saved.parent.iterdir()) == [saved]


def test_plain_torch_load_reads_it(saved: Path) -> None:
    assert_is_content(torch.load(saved, weights_only=True))


def places(size: int) -> list[int]:
    """First bytes, last bytes with the whole trailer, and some between."""
    between = random.Random(0).sample(range(size), SAMPLES)
    return sorted({0, 1, 2, 3, *range(size - TRAILER - 2, size), *between})


def test_any_flipped_bit_and_any_other_length_is_detected(saved: Path) -> None:
    whole = saved.read_bytes()
    for number, place in enumerate(places(len(whole))):
        data = bytearray(whole)
        data[place] ^= 1 << number % 8
        saved.write_bytes(data)
        with pytest.raises(ValueError, match=r"last\.pt: damaged .*its checksum"):
            read_checkpoint(saved)
    for part in (b"", whole[:TRAILER], whole[:-TRAILER], whole[: len(whole) // 2], whole[:-1], whole + b"\0"):
        saved.write_bytes(part)
        with pytest.raises(ValueError, match="damaged"):
            read_checkpoint(saved)
    saved.write_bytes(whole)
    assert_is_content(read_checkpoint(saved))


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace")])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_previous_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    before = saved.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(type(error)):
            write_checkpoint(saved, content(2.0))
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    write_checkpoint(saved, content(2.0))
    assert_is_content(read_checkpoint(saved), 2.0)


KILLER = """
import mmap, os, random, signal, sys, time
from functools import partial
from pathlib import Path
import torch
from hasten.checkpoint.file import Checkpoints, read_checkpoint, write_checkpoint
from hasten.checkpoint.saver import Saver
torch.set_num_threads(1)
draw, folder, kind = random.Random(2), Path(sys.argv[1]), sys.argv[3]
path = folder / "last.pt"
durable = mmap.mmap(-1, 8)
write_checkpoint(path, {"step": 0, "tensor": torch.zeros(200_000)})
def save_in_a_loop(step):
    tensor = torch.full((200_000,), float(step))
    # Each process makes its own, as after a real restart.
    write = Checkpoints(folder).write if kind == "folder" else partial(write_checkpoint, path)
    saver = Saver()
    while True:
        step += 1
        tensor.fill_(step)
        if kind == "folder":
            saver.save({"step": step, "tensor": tensor}, write)
            done = step - 2  # the one before may be under way, and this one waits
        else:
            write({"step": step, "tensor": tensor})
            done = step
        durable[:] = done.to_bytes(8, "little")
for trial in range(int(sys.argv[2])):
    before = Checkpoints(folder).newest()["step"]
    child = os.fork()
    if not child:
        save_in_a_loop(before)
    # However slow the machine, every second child has saved something before it is killed.
    ends = time.monotonic() + 30
    while trial % 2 and int.from_bytes(durable[:], "little") <= before and time.monotonic() < ends:
        time.sleep(0.001)
    time.sleep(draw.uniform(0.0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    newest = Checkpoints(folder).newest()
    step = newest["step"]
    assert step >= max(before, int.from_bytes(durable[:], "little"))
    assert torch.equal(newest["tensor"], torch.full((200_000,), float(step)))
print(step)
"""
"""A child saves in a loop and is killed at a random moment; whatever it left must be whole. Forked from one thread."""


def kill_while_saving(folder: Path, trials: int, kind: str) -> None:
    command = [sys.executable, "-c", KILLER, str(folder), str(trials), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1  # it was killed in the middle of saving, not only before
    assert read_checkpoint(folder / "last.pt")["step"] == int(done.stdout)


def test_a_kill_while_saving_leaves_a_whole_file(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, 5, "folder")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_hundred_kills_while_saving_leave_a_whole_file(tmp_path: Path, kind: str) -> None:
    kill_while_saving(tmp_path, 100, kind)


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["zip", "pickle"])
def test_a_file_with_code_is_refused_and_runs_nothing(tmp_path: Path, form: str) -> None:
    proof, path = tmp_path / "ran", tmp_path / "last.pt"
    buffer = io.BytesIO()
    content = {"step": 1, "weights": Payload(proof)}
    if form == "zip":
        torch.save(content, buffer)
    else:
        pickle.dump(content, buffer)
    body = buffer.getvalue()
    path.write_bytes(body + b"HASTEN01" + hashlib.sha256(body).digest())
    with pytest.raises(ValueError, match=r"last\.pt: not a checkpoint as Hasten writes it"):
        read_checkpoint(path)
    assert not proof.exists()
    torch.load(io.BytesIO(body), weights_only=False) if form == "zip" else pickle.loads(body)
    assert proof.exists()  # the payload would have worked


PLAIN = [
    None,
    True,
    1 << 70,
    1.5,
    1j,
    "text",
    b"bytes",
    (1, [2, {"x": {3}}]),
    OrderedDict(a=1),
    Counter({20: 1}),
    torch.float16,
    torch.device("cpu"),
    torch.Size([2, 3]),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back(tmp_path: Path, value: Any) -> None:
    write_checkpoint(tmp_path / "x.pt", {"value": value})
    result = read_checkpoint(tmp_path / "x.pt")["value"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    "value",
    [np.float64(1.0), np.zeros(2), defaultdict(int), Path("x"), frozenset({1}), Payload(Path("x"))],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_read_back_is_refused_when_it_is_saved(saved: Path, value: Any) -> None:
    """Found out on resuming, it would have cost the run."""
    before = saved.read_bytes()
    with pytest.raises(ValueError, match=r"last\.pt\.extra\.list\[1\]: .* read back.*save tensors"):
        write_checkpoint(saved, {"extra": {"list": [1, value]}})
    assert saved.read_bytes() == before


def test_a_key_that_could_not_be_read_back_is_refused_too(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"read back.*save tensors"):
        write_checkpoint(saved, {"extra": {Path("x"): 1}})
    assert_is_content(read_checkpoint(saved))


def numbered(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((100,), float(step))}


def test_the_newest_lies_under_one_name_and_other_files_are_left_alone(tmp_path: Path) -> None:
    others = ["best.pt", "last-good.pt", ".best.pt.ab12", "notes"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".last.pt.0a1b2c3d").write_bytes(b"half")  # what a kill left half-written
    made = Checkpoints(tmp_path)
    assert made.newest() is None
    for step in (10, 20, 30):
        made.write(numbered(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "last.pt"])
    result = made.newest()
    assert result is not None
    assert result["step"] == 30
    assert torch.equal(result["weights"], numbered(30)["weights"])
