"""The example of every public function runs as its docstring shows it, one after another in one folder."""

from __future__ import annotations

import doctest
import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest

import hasten
from tests.docs.test_code import folder, phantoms  # noqa: F401  fixtures

FUNCTIONS = (
    "load_run", "make_plan", "warm", "train", "train_folds", "predict", "load_predictor", "evaluate", "write_report",
    "export_weights", "compile_transforms", "training_state", "restore_state",
)  # fmt: skip
"""In this order: later examples use what earlier ones wrote."""


DOCUMENTED = {name: inspect.getdoc(getattr(hasten, name)) or "" for name in FUNCTIONS}


def test_every_public_function_is_here() -> None:
    functions = {name for name in hasten.__all__ if inspect.isfunction(getattr(hasten, name))}
    assert functions == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_explained(name: str) -> None:
    lines = DOCUMENTED[name].partition("Args:")[2].splitlines()
    explained = {each.strip() for line in lines if ":" in line for each in line.partition(":")[0].split(",")}
    assert set(inspect.signature(getattr(hasten, name)).parameters) - explained - {"config"} == set()


@pytest.mark.slow
def test_the_examples_run(folder: Path, phantoms: Path) -> None:  # noqa: F811
    shutil.copy(next((phantoms / "labelsTr").glob("*.nii.gz")), folder / "label.nii.gz")
    namespace: dict[str, Any] = {"__name__": "examples"}
    exec("import hasten", namespace)
    for name in FUNCTIONS:
        examples = doctest.DocTestParser().get_examples(DOCUMENTED[name])
        assert examples, name
        exec(compile("".join(each.source for each in examples), f"<example of {name}>", "exec"), namespace)
    assert (folder / "first.safetensors").is_file()
