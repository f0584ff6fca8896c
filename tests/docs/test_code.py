"""Every Python block of the pages runs as it stands, the blocks of a page one after another in one namespace.

They find a small Decathlon folder at path/to/dataset and an image case.nii.gz. Settings that make a run small are
added behind those of a page. A block that can't run is marked ```python notest: REASON and counted here.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import hasten
from hasten.config.load import load_run
from hasten.phantoms.organs import write_phantoms
from tests.docs.reading import Block, blocks, name, pages

NOT_RUN: dict[str, int] = {}
"""How many blocks of a page are marked `notest`."""

SMALL = (
    "train.device=cpu", "train.steps=4", "train.precision=fp32", "train.channels_last=false", "train.compile=false",
    "sample.patch=[16, 16, 16]", "sample.batch_size=2", "network.channels=[4, 8]",
    "network.strides=[[2, 2, 2]]", "observe.monitor_every=0", "observe.trackers=[]",
)  # fmt: skip


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


WITH_CODE = [page for page in pages() if python_blocks(page)]


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("data") / "set", num_cases=5, shape=(16, 24, 24), spacing=(1, 1, 1))


@pytest.fixture
def folder(phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a page's blocks."""
    shutil.copytree(phantoms, tmp_path / "path/to/dataset")
    shutil.copy(next((phantoms / "imagesTr").glob("*.nii.gz")), tmp_path / "case.nii.gz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "kept"))

    def small(path: Any = None, overrides: Any = ()) -> Any:
        given = [f"{name}={value}" for name, value in overrides.items()] if isinstance(overrides, dict) else overrides
        return load_run(path, [*given, *SMALL])

    monkeypatch.setattr(hasten, "load_run", small, raising=False)
    return tmp_path


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_code_of(page: Path, folder: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in python_blocks(page):
        if "notest" not in block.words:
            code = "\n" * block.line + block.text  # so that a traceback gives the page's own lines
            exec(compile(code, str(page), "exec"), namespace)


def test_blocks_that_are_not_run_are_counted_and_say_why() -> None:
    marked = [block for page in pages() for block in python_blocks(page) if "notest" in block.words]
    assert Counter(name(block.page) for block in marked) == NOT_RUN
    assert [block.words for block in marked if not block.words.partition("notest:")[2].strip()] == []
