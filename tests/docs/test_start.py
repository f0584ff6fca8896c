"""The commands of the start page are run, one after another, as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.commands import command_lines
from tests.docs.reading import DOCS, blocks


@pytest.mark.slow
def test_the_start_page(tmp_path: Path) -> None:
    lines = [line for block in blocks(DOCS / "start.md") if block.language == "shell" for line in command_lines(block)]
    assert len(lines) == 4
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "HASTEN_CACHE": str(tmp_path / "kept")}
    for line in lines:
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "report.html").is_file()
    assert len(list((tmp_path / "masks").glob("*.nii.gz"))) == 16
