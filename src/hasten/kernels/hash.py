# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""A hash of 32-bit words, by which kernels draw random numbers. Importing this needs Triton; see `use.triton_runs`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def hash_word(word):
    """An unsigned word, each bit of which depends on all bits of the other."""
    word = word.to(tl.uint32)
    word = word ^ (word >> 16)
    word = word * 0x21F0AAAD
    word = word ^ (word >> 15)
    word = word * 0x735A2D97
    return word ^ (word >> 15)
