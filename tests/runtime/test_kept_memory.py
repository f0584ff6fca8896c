from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import hasten.prediction.infer as infer
from hasten.runtime.allocator import _glibc, kept_memory

SCRIPT = """
import ctypes
from hasten.runtime.allocator import _glibc, kept_memory

class Mallinfo2(ctypes.Structure):
    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]

def _kept(libc):
    # A block above every limit, to which nothing is written, comes from the heap.
    libc.mallinfo2.restype, libc.malloc.restype = Mallinfo2, ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    before = libc.mallinfo2().field3  # hblks
    block = libc.malloc(256 << 20)
    mapped = libc.mallinfo2().field3 > before
    libc.free(block)
    return not mapped

libc = _glibc()
assert not _kept(libc)
with kept_memory() as outer:
    assert outer
    assert _kept(libc)
    with kept_memory() as inner:
        assert not inner
    assert _kept(libc), "the inner one must not end what the outer one began"
assert not _kept(libc)
try:
    with kept_memory():
        raise KeyError
except KeyError:
    assert not _kept(libc)
from hasten.runtime.allocator import keep_freed_memory
keep_freed_memory()
with kept_memory() as kept:
    assert not kept
assert _kept(libc), "what a run keeps for good is kept for good"
print("passed")
"""


@pytest.mark.skipif(not hasattr(_glibc(), "mallinfo2"), reason="needs glibc 2.33 or later")
def test_memory_is_kept_within_and_given_back_after() -> None:
    """In a process of its own: a failed allocation moves a thread to a heap that follows other rules."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "passed\n", done.stderr


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    with kept_memory() as kept:
        assert not kept


@pytest.mark.parametrize(("sums_bytes", "kept"), [(None, 1), (1, 0)])
def test_a_volume_in_several_parts_keeps_no_memory(
    sums_bytes: int | None, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of the parts differ in size, so that kept ones pile up: 7 GiB where 1.5 GiB of scores were allowed."""
    entered: list[bool] = []
    monkeypatch.setattr(infer, "kept_memory", lambda: nullcontext(entered.append(True)))
    how = infer.Inference(
        window=(8, 8, 8), divisor=(1, 1, 1), whole_up_to=0, overlap=0.5, batch_size=1, precision="fp32",
        channels_last=False, spatial_dims=3, device=torch.device("cpu"), classes=2, sums_bytes=sums_bytes,
    )  # fmt: skip
    assert len(list(infer.infer_labels(nn.Conv3d(1, 2, 1), [torch.randn(1, 24, 16, 16)], how))) == 1
    assert len(entered) == kept
