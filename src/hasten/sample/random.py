"""Counter-based random numbers in plain tensor arithmetic: a draw depends on its key and counter, on nothing else.

The generator is the two-round 32-bit integer hash of the hash-prospector project (Ellett's constants, bias 0.107),
applied twice with two 32-bit key words. CPU, GPU, eager and compiled code give the same bits: in int64 both multipliers
are below 2**31, so that no product overflows, and in int32 products wrap everywhere. As plain operations a number takes
up to 40 kernels, most of what a batch of small patches costs a GPU; there each function is one Triton kernel where
Triton runs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hasten.kernels.use import triton_runs

_MASK = 0xFFFFFFFF
_GOLDEN = 0x1E3779B1


def hash32(word: Tensor) -> Tensor:
    """Mix int64 words of any shape that hold 32-bit values; returns int64 in [0, 2**32)."""
    if triton_runs(word):
        from hasten.sample import random_triton

        return random_triton.hashed(word)
    word = word ^ (word >> 16)
    word = (word * 0x21F0AAAD) & _MASK
    word = word ^ (word >> 15)
    word = (word * 0x735A2D97) & _MASK
    return word ^ (word >> 15)


def sample_key(seed: Tensor, sample: Tensor) -> Tensor:
    """Two key words for each global sample number.

    seed: () int64, non-negative; sample: (B,) int64, non-negative. Returns (B, 2) int64 of 32-bit words.
    """
    if triton_runs(sample):
        from hasten.sample import random_triton

        return random_triton.sample_keys(seed, sample)
    low, high = sample & _MASK, sample >> 32
    base = hash32((seed & _MASK) ^ hash32((seed >> 32) + _GOLDEN))
    first = hash32(low ^ hash32(high ^ base))
    second = hash32((low + 0x5BD1E995) & _MASK ^ hash32((first + base) & _MASK))
    return torch.stack([first, second], dim=-1)


def salted_keys(key: Tensor, salt: int, step: int, count: int) -> Tensor:
    """(count, B, 2): of each key the words with the salts salt, salt + step ... as 32-bit words. key: (B, 2)."""
    if triton_runs(key):
        from hasten.sample import random_triton

        return random_triton.salted_keys(key, salt, step, count)
    salts = (salt + step * torch.arange(count, device=key.device)[:, None]) & _MASK
    return torch.stack([hash32((key[:, 0] + salts) & _MASK), hash32(key[:, 1] ^ salts)], dim=2)


def random_words(key: Tensor, stream: int, count: int) -> Tensor:
    """(B, count) int64 of independent 32-bit words. key: (B, 2). `stream` separates the uses of one key."""
    if triton_runs(key):
        from hasten.sample import random_triton

        return random_triton.words(key, salt_of(stream), count)
    return words_at(key, stream, torch.arange(count, device=key.device, dtype=torch.int64))


def words_at(key: Tensor, stream: int, counter: Tensor) -> Tensor:
    """Words for the given counters. key: (B, 2); counter: (M,) int64 below 2**32. Returns (B, M) int64."""
    start = hash32((key[:, :1] + salt_of(stream)) & _MASK)
    return hash32(hash32(counter ^ start) ^ key[:, 1:])


def uniform(key: Tensor, stream: int, count: int) -> Tensor:
    """(B, count) float32 in [0, 1), 24 bits each."""
    if triton_runs(key):
        from hasten.sample import random_triton

        return random_triton.uniforms(key, salt_of(stream), 0.0, 1.0, count)
    return (random_words(key, stream, count) >> 8).to(torch.float32) * (1.0 / (1 << 24))


def uniform_in(key: Tensor, stream: int, low: float, high: float, count: int = 1) -> Tensor:
    """(B, count) float32 in [low, high]: rounding can reach the upper end."""
    if triton_runs(key):
        from hasten.sample import random_triton

        return random_triton.uniforms(key, salt_of(stream), low, high - low, count)
    return low + (high - low) * uniform(key, stream, count)


def below(word: Tensor, bound: Tensor) -> Tensor:
    """Integers in [0, bound) from 32-bit words by multiply-shift (bias below bound / 2**32).

    word: int64 of any shape; bound: int64 of one that broadcasts with it, 1 .. 2**31. Returns int64.
    """
    return (word * bound) >> 32


def normal(key: Tensor, stream: int, count: int) -> Tensor:
    """(B, count) float32 standard normal by Box-Muller, the two halves of one word each; |z| stays below 4.9.

    Words as `random_words` gives them, in half the memory traffic and a third of the time to compile.
    """
    if triton_runs(key):
        from hasten.sample import random_triton

        return random_triton.normals(key, salt_of(stream), count)
    start = _signed(hash32((key[:, :1] + salt_of(stream)) & _MASK))
    counter = torch.arange(count, device=key.device, dtype=torch.int32)
    word = _hash_signed(_hash_signed(counter ^ start) ^ _signed(key[:, 1:]))
    radius = (((word >> 16) & 0xFFFF).to(torch.float32) + 0.5) * (1.0 / 65536)
    angle = (word & 0xFFFF).to(torch.float32) * (2 * math.pi / 65536)
    return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(angle)


def salt_of(stream: int) -> int:
    """What a stream adds to the first word of a key."""
    return (stream * 0x2545F491 + 0x1234567) & _MASK


def _signed(word: Tensor) -> Tensor:
    """The 32 bits of `word` as int32."""
    return torch.where(word >> 31 > 0, word - (1 << 32), word).to(torch.int32)


def _hash_signed(word: Tensor) -> Tensor:
    """`hash32` of int32 words: products wrap, and what an arithmetic shift brings in is masked."""
    word = word ^ ((word >> 16) & 0xFFFF)
    word = word * 0x21F0AAAD
    word = word ^ ((word >> 15) & 0x1FFFF)
    word = word * 0x735A2D97
    return word ^ ((word >> 15) & 0x1FFFF)
