"""Short times in words."""

from __future__ import annotations

import pytest

from hasten.study.finding import ms


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.000 ms"),
        (0.00012, "0.120 ms"),
        (0.0123, "12.3 ms"),
        (0.1234, "123 ms"),
        (1.5, "1500 ms"),
        (12.34, "12.3 s"),
    ],
)
def test_as_many_digits_as_tell_something(seconds, text):
    assert ms(seconds) == text
