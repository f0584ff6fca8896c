from __future__ import annotations

import pytest

from hasten.config.size import duration_text, parse_duration, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("8GiB", 8 * 2**30),
        ("1.5 gib", 3 * 2**29),
        ("500MB", 500_000_000),
        ("7b", 7),
        (" 2 KiB ", 2048),
        ("8G", 8 * 2**30),
        ("16g", 2**34),
        (".5Gi", 2**29),
        ("00", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "8 apples", "8", "1G2M", "half", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (2**20, "1 MiB"),
        (300 * 2**20, "300 MiB"),
        (3.2 * 2**30, "3.2 GiB"),
        (500 * 2**40, "500 TiB"),
    ],
)
def test_a_size_in_words(num_bytes: float, text: str) -> None:
    assert size_text(num_bytes) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10min", 600),
        ("1.5 h", 5400),
        ("2 days", 172_800),
        ("1 minute", 60),
        ("2m", 120),
        ("1h30m", 5400),
        ("1 h 30 min 5 s", 5405),
        ("1d12h", 129_600),
        (".5h", 1800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "min", "-1h", "0s", "1 fortnight", "1e3s", "1h30", "30m1h", "1m1m", "1:30", "1h and 2m"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s"):
        parse_duration(text)


@pytest.mark.parametrize(("seconds", "text"), [(45.2, "45 s"), (600, "10 min"), (5400, "90 min"), (7200, "2 h")])
def test_a_duration_in_words(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
