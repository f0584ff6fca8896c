from __future__ import annotations

import pytest

from hasten.config.size import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("8GiB", 8 * 2**30), ("1.5 gib", 3 * 2**29), ("500MB", 500_000_000), ("7", 7), (" 2 KiB ", 2048)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "8 apples", "8G", "half", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8GiB"):
        parse_size(text)
