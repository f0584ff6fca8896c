"""Freed memory stays: a block that is allocated again costs no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
if sys.argv[1] == "keep":
    from hasten.runtime.allocator import keep_freed_memory
    assert keep_freed_memory().on
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(2**24)
before = faults()
for _ in range(10):
    torch.ones(2**24)
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_a_large_block_is_faulted_in_once() -> None:
    def faults(mode: str) -> int:
        command = [sys.executable, "-c", PROGRAM, mode]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)

    # One more block may be touched, wherever the heap had room for it; after that nothing is.
    plain, kept = faults("plain"), faults("keep")
    assert plain > 100_000
    assert kept * 5 < plain
