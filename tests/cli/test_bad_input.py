"""What a user can get wrong, through the command line: one clear message, nothing lost, and it works once mended."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.observe.lock import run_lock
from hasten.observe.rundir import LOCK
from hasten.phantoms.organs import write_phantoms
from hasten.prepare.resample import nearest_index
from tests.training.runs import at_step

TINY = [
    "train.device=cpu",
    "train.steps=1",
    "train.precision=fp32",
    "train.channels_last=false",
    "train.compile=false",
    "sample.patch=[8, 16, 16]",
    "sample.batch_size=2",
    "sample.affine_prob=0",
    "prepare.num_threads=2",
    "network.channels=[2, 4]",
    "network.strides=[[2, 2, 2]]",
    "network.num_res_units=0",
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    # Drawing figures takes most of a tiny run's time, and the report has tests of its own.
    monkeypatch.setitem(sys.modules, "hasten.report.page", SimpleNamespace(write_report=lambda runs, out: out))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_phantoms(tmp_path / "data", num_cases=4, shape=(8, 16, 16), spacing=(1.0, 1.0, 1.0))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def train(source: Path, out: Path, *more: str) -> Any:
    return run("train", source, *TINY, *more, "--quiet", "--out", out)


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the cache's."""
    files = (path for path in folder.rglob("*") if path.is_file() and (folder / "cache") not in path.parents)
    return {str(path): path.read_bytes() for path in files}


def refused(call: Callable[[], Any], folder: Path, *message: str) -> str:
    """The command ends with 2 and one message that tells all of `told`, and leaves every file as it was."""
    before = content(folder)
    result = call()
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.output
    for part in message:
        assert part in result.stderr
    assert content(folder) == before
    return str(result.stderr)


def image_of(data: Path, number: int = 1) -> Path:
    return data / f"imagesTr/phantom_{number:03d}.nii.gz"


def label_of(data: Path, number: int = 1) -> Path:
    return data / f"labelsTr/phantom_{number:03d}.nii.gz"


def rewrite(path: Path, change: Callable[[np.ndarray], Any], affine: np.ndarray | None = None) -> Callable[[], object]:
    """Save a changed array in a file's place; calling what is returned brings the file back."""
    before = path.read_bytes()
    image = nib.load(path)
    array = change(np.asanyarray(image.dataobj).copy())
    nib.save(nib.Nifti1Image(array, image.affine if affine is None else affine), path)
    return lambda: path.write_bytes(before)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def web_page(path: Path, *, as_gzip: bool = False) -> None:
    text = b"<html>404 Not Found</html>" * 30
    path.write_bytes(gzip.compress(text) if as_gzip else text)


def hold(path: Path, value: float) -> None:
    def spoil(image: np.ndarray) -> np.ndarray:
        spoiled = image.astype(np.float32)
        spoiled[3, 2, 1] = value
        return spoiled

    rewrite(path, spoil)


def list_nothing(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "training": []}))


def turn(path: Path) -> None:
    rewrite(path, lambda label: label, affine=np.diag([1.0, 1.0, 2.0, 1.0]))


def listing_of(data: Path) -> Path:
    return data / "dataset.json"


NO_NIFTI = ("is no NIfTI file", "convert it, or correct the list")
CUT = ("truncated gzip", "copy or download it again")
SPOILED: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object], tuple[str, ...]]] = {
    "no label": (label_of, Path.unlink, ("restore them or remove their cases",)),
    "label of another shape": (
        label_of,
        lambda path: rewrite(path, lambda label: label[:-1]),
        ("phantom_001.nii.gz", "(8, 16, 15)", "(8, 16, 16)", "resample it onto"),
    ),
    "label of another affine": (label_of, turn, ("affine of 1 file differs", "resample them")),
    "undeclared value": (
        label_of,
        lambda path: rewrite(path, lambda label: label + 4),
        ("4, 5", "declared are 0, 1", "correct the label map"),
    ),
    "cut image": (image_of, cut, CUT),
    "cut label": (label_of, cut, CUT),
    "web page as image": (image_of, web_page, NO_NIFTI),
    "zipped web page as label": (label_of, partial(web_page, as_gzip=True), NO_NIFTI),
    "NaN": (image_of, partial(hold, value=np.nan), ("NaN or infinite", "(1, 2, 3)", "replace them")),
    "infinity": (image_of, partial(hold, value=-np.inf), ("NaN or infinite", "(1, 2, 3)", "replace them")),
    "no cases": (listing_of, list_nothing, ("lists 0 cases", "add images")),
}
"""Of each: the file that is wrong and named, what is done to it, and what is told beside its name."""


@pytest.mark.parametrize(("where", "spoil", "words"), SPOILED.values(), ids=SPOILED)
def test_a_bad_file_is_named_and_the_data_work_once_it_is_mended(
    tmp_path: Path, data: Path, out: Path, where: Any, spoil: Any, words: tuple[str, ...]
) -> None:
    before = where(data).read_bytes()
    spoil(where(data))
    refused(lambda: train(data, out), tmp_path, str(where(data)), *words)
    assert not out.exists()
    where(data).write_bytes(before)
    assert run("plan", data, "--out", tmp_path / "plan.json").exit_code == 0


def test_a_bad_case_that_only_the_cache_reads(tmp_path: Path, out: Path) -> None:
    """The fingerprint reads a sample of the cases; the workers that fill the cache read the others."""
    data = write_phantoms(tmp_path / "data", num_cases=24, shape=(8, 16, 16), spacing=(1.0, 1.0, 1.0))
    number = next(i for i in range(24) if i not in nearest_index(24, 20))
    mend = rewrite(label_of(data, number), lambda label: label + 2)
    refused(lambda: train(data, out), tmp_path, str(label_of(data, number)), "not declared")
    assert not out.exists()
    assert not list((tmp_path / "cache/arena").iterdir())
    mend()
    assert train(data, out).exit_code == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        refused(lambda out=out: train(data, out), tmp_path, str(out), "choose another --out")  # type: ignore[misc]


def test_a_disk_that_is_full_while_caching(
    tmp_path: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's answer is made up."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(lambda: train(data, out), tmp_path, str(tmp_path / "cache"), "disk is full", "$HASTEN_CACHE")
    assert not out.exists()
    assert not list((tmp_path / "cache/arena").iterdir())
    assert train(data, out).exit_code == 0


@pytest.fixture
def stopped(data: Path, out: Path) -> Path:
    """A run that more steps can be asked of."""
    result = train(data, out, "train.steps=2", "train.validate_every=1")
    assert result.exit_code == 0, result.output
    return out


def test_a_folder_in_which_a_run_trains(tmp_path: Path, data: Path, stopped: Path) -> None:
    resume = ("train", "--resume", "--quiet", "--out", stopped)
    with run_lock(stopped, resume=True):
        results = (f"{stopped}: another run (pid {os.getpid()} on host", "is training there", "choose another --out")
        refused(lambda: run(*resume), tmp_path, *results)
        refused(lambda: train(data, stopped), tmp_path, *results)
    refused(lambda: run(*resume, "network.norm=batch"), tmp_path, "network.norm=batch", "this one has instance")
    assert not (stopped / LOCK).exists()


def test_ctrl_c_saves_and_says_how_to_go_on(data: Path, out: Path) -> None:
    """In this process; `tests/training/test_resume.py` has a Ctrl-C of a process."""
    with at_step(2, "interrupt"):
        result = run("train", data, *TINY, "train.steps=4", "train.validate_every=1", "--out", out)
    assert result.exit_code == 130, result.output
    assert result.stderr.count(f"hasten train --resume --out {out}") == 1
    assert (out / "checkpoints/last.pt").is_file()
    assert json.loads((out / "summary.json").read_text())["status"] == "interrupted"
    result = run("train", "--resume", "--quiet", "--out", out)
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 4)


def test_a_plan_that_was_edited_is_not_lost(tmp_path: Path, data: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", data, "--out", plan).exit_code == 0
    before = plan.read_text()
    plan.write_text("edited")
    refused(lambda: run("plan", data, "--out", plan), tmp_path, str(plan), "exists; add --overwrite")
    assert run("plan", data, "--out", plan, "--overwrite").exit_code == 0
    assert plan.read_text() == before
