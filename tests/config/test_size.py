from __future__ import annotations

import pytest

from hasten.config.size import parse_duration, parse_size, size_text

SIZES = {"0": 0, "8GiB": 8 * 2**30, "1.5 gib": 3 * 2**29, "500MB": 500_000_000, "7b": 7, "8G": 2**33, ".5Gi": 2**29}
NO_SIZES = ("", "GiB", "-1GiB", "8 apples", "8", "1G2M", "half", "1e3")
DURATIONS = {"90s": 90, "1.5 h": 5400, "2 days": 172_800, "2m": 120, "1h30m": 5400, "1 h 30 min 5 s": 5405}
NO_DURATIONS = ("", "10", "min", "-1h", "0s", "1 fortnight", "1e3s", "1h30", "30m1h", "1m1m", "1:30", "1h and 2m")


def test_sizes_and_durations() -> None:
    assert {text: parse_size(text) for text in SIZES} == SIZES
    assert {text: parse_duration(text) for text in DURATIONS} == DURATIONS


@pytest.mark.parametrize("text", NO_SIZES)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8GiB"):
        parse_size(text)


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s"):
        parse_duration(text)


def test_in_words() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "0.977 KiB", 2**20: "1 MiB", 300 * 2**20: "300 MiB", 500 * 2**40: "500 TiB"}
    assert {number: size_text(number) for number in sizes} == sizes
