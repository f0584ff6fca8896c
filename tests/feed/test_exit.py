"""A program that keeps iterators to its end: their threads, busy in torch while Python ends, must not abort it."""

from __future__ import annotations

import subprocess
import sys

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

kept = [iter(ThreadBuffer(batches())), iter(Ring(batches(), torch.device("cpu")))]
for each in kept:
    next(each)
sys.exit(3)
"""


def test_the_exit_code_is_the_programs_own() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (3, "")
