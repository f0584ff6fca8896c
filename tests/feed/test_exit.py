"""A program that keeps an iterator to its end: its thread, busy in torch while Python shuts down, must not abort it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from hasten.monai.thread_loader import ThreadBuffer
from hasten.feed.ring import Ring

def batches():
    while True:
        for _ in range(20):
            batch = torch.rand(200_000).sort()[0]
        yield batch

kept = iter({ITERABLE})
next(kept)
sys.exit(3)
"""


@pytest.mark.parametrize("iterable", ["ThreadBuffer(batches())", "Ring(batches(), torch.device('cpu'))"])
def test_the_exit_code_is_the_programs_own(iterable: str) -> None:
    command = [sys.executable, "-c", SCRIPT.replace("{ITERABLE}", iterable)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (3, "")
