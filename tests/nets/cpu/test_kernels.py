"""Building the C++ functions; what they compute is tested beside their wrappers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NO_COMPILER = """
import sys, torch
from hasten.nets.surgery.normact import group_norm_act
from torch.nn import functional
image = torch.randn(2, 3, 5, 6)
assert torch.allclose(group_norm_act(image, 3, slope=0.0), functional.relu(functional.instance_norm(image)), atol=1e-5)
"""

ENDS_FIRST = """
import threading
from hasten.nets.cpu import library

def release():
    threading.main_thread().join()
    library._LOCK.release()

library._LOCK.acquire()
library.build_ahead()
threading.Thread(target=release).start()
"""


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/none", "there is no C++ compiler (g++, or the one that CXX names)"),
        ("/bin/false", "/bin/false ended with an error"),
    ],
)
def test_without_a_compiler_torchs_operations_run(compiler: str, reason: str, tmp_path: Path) -> None:
    environment = os.environ | {"CXX": compiler, "HASTEN_CACHE": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", NO_COMPILER], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    assert (
        process.stderr.strip() == f"norms, losses and convolutions of few channels run as torch's operations: {reason}"
    )
    assert list(tmp_path.rglob("*.so")) == []


def test_a_program_that_ends_before_they_are_built_says_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"CXX": "/bin/true", "HASTEN_CACHE": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", ENDS_FIRST], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    assert process.stderr == ""
