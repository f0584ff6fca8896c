from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import mmap, os, sys
from pathlib import Path
from hasten.cache.bus_error import bus_error_explained
path, what = Path(sys.argv[1]), sys.argv[2]
with path.open("rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
with bus_error_explained([path], "hasten train --resume --out run"):
    if what == "cut":
        os.truncate(path, 4096)
        mapped[100000]
    elif what == "abort":
        os.abort()
    elif what == "fail":
        raise KeyError("a bug")
"""


def run(tmp_path: Path, what: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "image.bin"
    path.write_bytes(bytes(200000))
    return subprocess.run([sys.executable, "-c", CODE, path, what], capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems raise other signals")
def test_a_file_that_is_cut_while_it_is_mapped(tmp_path: Path) -> None:
    done = run(tmp_path, "cut")
    assert done.returncode == -signal.SIGBUS
    assert done.stderr == (
        f"error: {tmp_path}/image.bin: was cut from 200000 to 4096 bytes while the run used it; "
        "resume with the command below, which prepares it again\nhasten train --resume --out run\n"
    )


@pytest.mark.parametrize(("what", "code", "said"), [("", 0, ""), ("fail", 1, "KeyError"), ("abort", -6, "Aborted")])
def test_other_ends_are_told_as_ever(tmp_path: Path, what: str, code: int, said: str) -> None:
    done = run(tmp_path, what)
    assert done.returncode == code
    assert said in done.stderr
    assert "was cut" not in done.stderr
