# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The numbers of `hasten.sample.random`, bit for bit, by one Triton kernel each instead of up to 40 of torch's.

Words are unsigned here, so that products and sums wrap. Importing this needs Triton; see
`hasten.kernels.use.triton_runs`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.kernels.hash import hash_word

_TURN = tl.constexpr(2 * math.pi / 65536)
_BLOCK = 1024


@triton.jit
def _load(words):
    return tl.load(words).to(tl.uint32)


@triton.jit
def word_at(key, salt, counter):
    """The words of these counters. key: of the row."""
    return hash_word(hash_word(counter.to(tl.uint32) ^ hash_word(_load(key) + salt.to(tl.uint32))) ^ _load(key + 1))


@triton.jit
def normal_of(word):
    """Box-Muller of the halves of a word."""
    radius = ((word >> 16).to(tl.float32) + 0.5) * (1.0 / 65536)
    angle = (word & 0xFFFF).to(tl.float32) * _TURN
    return tl.sqrt(-2.0 * tl.log(radius)) * tl.cos(angle)


@triton.jit(do_not_specialize=["salt", "low", "width", "count"])
def words_kernel(key, out, salt, low, width, count, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """out (B, count): words (KIND 0), uniform numbers from low to low + width (1), or standard normal ones (2)."""
    blocks = tl.cdiv(count, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    counter = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    word = word_at(key + row * 2, salt, counter)
    target = out + row * count + counter
    if KIND == 0:
        tl.store(target, word.to(tl.int64), counter < count)
    elif KIND == 1:
        unit = (word >> 8).to(tl.float32) * (1.0 / 16777216)
        tl.store(target, low + width * unit, counter < count)
    else:
        tl.store(target, normal_of(word), counter < count)


@triton.jit(do_not_specialize=["count"])
def hash_kernel(words, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + at, at < count, other=0).to(tl.uint32)
    tl.store(out + at, hash_word(word).to(tl.int64), at < count)


@triton.jit(do_not_specialize=["count"])
def sample_key_kernel(seed, sample, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number, whole = tl.load(sample + at, at < count, other=0), tl.load(seed)
    low, high = number.to(tl.uint32), (number >> 32).to(tl.uint32)
    base = hash_word(whole.to(tl.uint32) ^ hash_word((whole >> 32).to(tl.uint32) + 0x1E3779B1))
    first = hash_word(low ^ hash_word(high ^ base))
    second = hash_word((low + 0x5BD1E995) ^ hash_word(first + base))
    tl.store(out + at * 2, first.to(tl.int64), at < count)
    tl.store(out + at * 2 + 1, second.to(tl.int64), at < count)


@triton.jit(do_not_specialize=["salt", "step", "batch", "count"])
def salted_keys_kernel(key, out, salt, step, batch, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, salt_of_row = at % batch, salt.to(tl.uint32) + (at // batch).to(tl.uint32) * step.to(tl.uint32)
    first = tl.load(key + row * 2, at < count, other=0).to(tl.uint32)
    second = tl.load(key + row * 2 + 1, at < count, other=0).to(tl.uint32)
    tl.store(out + at * 2, hash_word(first + salt_of_row).to(tl.int64), at < count)
    tl.store(out + at * 2 + 1, hash_word(second ^ salt_of_row).to(tl.int64), at < count)


def words(key: Tensor, salt: int, count: int) -> Tensor:
    """(B, count) int64."""
    return _words(key, salt, count, torch.int64, kind=0)


def uniforms(key: Tensor, salt: int, low: float, width: float, count: int) -> Tensor:
    """(B, count) float32: low + width * a number in [0, 1)."""
    return _words(key, salt, count, torch.float32, kind=1, low=low, width=width)


def normals(key: Tensor, salt: int, count: int) -> Tensor:
    """(B, count) float32, within rounding of those by torch."""
    return _words(key, salt, count, torch.float32, kind=2)


def _words(
    key: Tensor, salt: int, count: int, dtype: torch.dtype, *, kind: int, low: float = 0.0, width: float = 1.0
) -> Tensor:
    out = torch.empty(key.shape[0], count, dtype=dtype, device=key.device)
    if out.numel():
        block = min(_BLOCK, max(32, triton.next_power_of_2(count)))
        words_kernel[(key.shape[0] * triton.cdiv(count, block),)](
            key.contiguous(),
            out,
            signed(salt),
            low,
            width,
            count,
            KIND=kind,
            BLOCK=block,
            num_warps=max(1, block // 256),
            enable_fp_fusion=False,
        )
    return out


def hashed(word: Tensor) -> Tensor:
    """`hash32` of int64 words of any shape."""
    word = word.contiguous()
    out = torch.empty_like(word)
    if out.numel():
        hash_kernel[(triton.cdiv(word.numel(), 256),)](word, out, word.numel(), BLOCK=256, num_warps=4)
    return out


def sample_keys(seed: Tensor, sample: Tensor) -> Tensor:
    """(B, 2) int64."""
    out = torch.empty(sample.shape[0], 2, dtype=torch.int64, device=sample.device)
    if out.numel():
        grid = (triton.cdiv(len(sample), 128),)
        sample_key_kernel[grid](seed, sample.contiguous(), out, len(sample), BLOCK=128, num_warps=4)
    return out


def salted_keys(key: Tensor, salt: int, step: int, count: int) -> Tensor:
    """(count, B, 2) int64."""
    out = torch.empty(count, *key.shape, dtype=torch.int64, device=key.device)
    if out.numel():
        total = count * len(key)
        salted_keys_kernel[(triton.cdiv(total, 128),)](
            key.contiguous(), out, signed(salt), signed(step), len(key), total, BLOCK=128, num_warps=4
        )
    return out


def signed(word: int) -> int:
    """The 32 bits of `word` as an int32, so that a kernel's argument has one type whatever the salt."""
    return word - (1 << 32) if word >> 31 else word
