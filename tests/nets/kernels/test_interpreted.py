"""The Triton kernels' values where there is no GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]


def numbers_of_one() -> bool:
    """Whether an array of one element is taken for a number, as Triton's interpreter asks of NumPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return int(np.ones(1)) == 1
        except TypeError:
            return False


pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.skipif(not numbers_of_one(), reason="Triton's interpreter needs an older NumPy (< 2.4)"),
]


@pytest.mark.parametrize(
    "what",
    [
        "norms",
        "few_channels",
        "narrow_results",
        "batch_norms",
        "dropouts",
        "long_dropout",
        "far_from_zero",
        "repeats",
        "losses",
        "wrong_label",
        "columns",
    ],
)
def test_kernels_compute_what_plain_operations_do(what: str) -> None:
    program = Path(__file__).with_name("interpret.py")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, str(program), what], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
