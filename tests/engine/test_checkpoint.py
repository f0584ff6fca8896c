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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.engine.checkpoint import read_checkpoint, write_checkpoint

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


def assert_is_content(found: dict[str, Any], value: float = 1.0) -> None:
    expected = content(value)
    assert found.keys() == expected.keys()
    assert found["step"] == 7
    assert found["nothing"] is None
    assert found["names"] == ["x", "y"]
    assert math.isnan(found["best"]["value"])
    assert torch.equal(found["random_state"], expected["random_state"])
    for name, tensor in expected["weights"].items():
        assert torch.equal(found["weights"][name], tensor)


def test_round_trip(saved: Path) -> None:
    assert_is_content(read_checkpoint(saved))
    assert list(saved.parent.iterdir()) == [saved]


def test_memory_format_is_kept(tmp_path: Path) -> None:
    tensor = torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    write_checkpoint(tmp_path / "x.pt", {"t": tensor})
    found = read_checkpoint(tmp_path / "x.pt")["t"]
    assert torch.equal(found, tensor)
    assert found.stride() == tensor.stride()


def test_plain_torch_load_reads_it(saved: Path) -> None:
    assert_is_content(torch.load(saved, weights_only=True))


def test_it_has_the_permissions_of_a_plain_file(saved: Path) -> None:
    plain = saved.with_name("plain")
    plain.touch()
    assert saved.stat().st_mode == plain.stat().st_mode


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"last\.pt: no such checkpoint"):
        read_checkpoint(tmp_path / "last.pt")


def places(size: int) -> list[int]:
    """First bytes, last bytes with the whole trailer, and some between."""
    between = random.Random(0).sample(range(size), SAMPLES)
    return sorted({0, 1, 2, 3, *range(size - TRAILER - 2, size), *between})


def test_any_flipped_bit_is_detected(saved: Path) -> None:
    whole = saved.read_bytes()
    for number, place in enumerate(places(len(whole))):
        data = bytearray(whole)
        data[place] ^= 1 << number % 8
        saved.write_bytes(data)
        with pytest.raises(ValueError, match=r"last\.pt: damaged .*its checksum"):
            read_checkpoint(saved)
    saved.write_bytes(whole)
    assert_is_content(read_checkpoint(saved))


def test_any_truncation_is_detected(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in [*range(TRAILER + 2), *places(len(whole))]:
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged"):
            read_checkpoint(saved)


@pytest.mark.parametrize("more", [b"\0", b"x" * TRAILER])
def test_bytes_after_the_end_are_detected(saved: Path, more: bytes) -> None:
    saved.write_bytes(saved.read_bytes() + more)
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(saved)


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def break_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "fsync", no_space)


def break_write(patch: pytest.MonkeyPatch) -> None:
    """The second write, of the trailer, fails: the first has filled the disk."""
    plain = os.fdopen

    def fdopen(handle: int, mode: str) -> Any:
        stream = plain(handle, mode)

        class Full:
            left = 1

            def __enter__(self) -> Full:
                return self

            def __exit__(self, *_: object) -> None:
                stream.close()

            def write(self, data: bytes) -> None:
                if not self.left:
                    no_space()
                self.left -= 1
                stream.write(data)

        return Full()

    patch.setattr(os, "fdopen", fdopen)


def break_replace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Path, "replace", no_space)


@pytest.mark.parametrize("breaks", [break_fsync, break_write, break_replace])
def test_a_failed_write_leaves_the_previous_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    before = saved.read_bytes()
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(OSError, match="No space"):
            write_checkpoint(saved, content(2.0))
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    write_checkpoint(saved, content(2.0))
    assert_is_content(read_checkpoint(saved), 2.0)


def test_an_interrupted_write_leaves_the_previous_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    before = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(saved, content(2.0))
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_full_disk_leaves_the_previous_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        path = disk / "last.pt"
        write_checkpoint(path, content())
        before = path.read_bytes()
        with pytest.raises(OSError, match="No space"):
            write_checkpoint(path, {"weights": torch.zeros(100_000)})
        assert path.read_bytes() == before
        assert list(disk.iterdir()) == [path]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from hasten.engine.checkpoint import read_checkpoint, write_checkpoint
torch.set_num_threads(1)
draw, path = random.Random(2), Path(sys.argv[1])
write_checkpoint(path, {"number": 0, "tensor": torch.zeros(200_000)})
for trial in range(int(sys.argv[2])):
    before = read_checkpoint(path)["number"]
    child = os.fork()
    if not child:
        number = before
        while True:
            number += 1
            write_checkpoint(path, {"number": number, "tensor": torch.full((200_000,), float(number))})
    time.sleep(draw.uniform(0.0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = read_checkpoint(path)
    assert found["number"] >= before
    assert torch.equal(found["tensor"], torch.full((200_000,), float(found["number"])))
print(found["number"])
"""
"""A child saves in a loop and is killed at a random moment; whatever it left must be whole. Forked from one thread."""


def kill_while_saving(folder: Path, trials: int) -> None:
    command = [sys.executable, "-c", KILLER, str(folder / "last.pt"), str(trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1  # it was killed in the middle of saving, not only before
    assert read_checkpoint(folder / "last.pt")["number"] == int(done.stdout)


def test_a_kill_while_saving_leaves_a_whole_file(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, 20)


@pytest.mark.slow
def test_a_hundred_kills_while_saving_leave_a_whole_file(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, 100)


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


def test_something_else_with_a_right_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    body = b"not a zip file"
    path.write_bytes(body + b"HASTEN01" + hashlib.sha256(body).digest())
    with pytest.raises(ValueError, match="not a checkpoint as Hasten writes it"):
        read_checkpoint(path)
