"""Amounts as studies show them."""

from __future__ import annotations


def ms(seconds: float) -> str:
    """A short time, rounded to its significant digits."""
    value = 1e3 * seconds
    if value >= 10_000:
        return f"{seconds:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.3f} ms"
