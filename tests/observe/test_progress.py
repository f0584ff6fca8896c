from __future__ import annotations

import io

import pytest

from hasten.observe.progress import PLAIN_EVERY, Progress, wrapped
from hasten.observe.values import aligned


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Hand:
    """A clock that a test turns by hand; counts how often it is read."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_now_and_then_and_one_per_validation() -> None:
    stream, clock = io.StringIO(), Hand()
    progress = Progress(stream, clock=clock)
    progress.start(100, target=0.9)
    for step in range(1, 41):
        clock.now += 0.5
        progress.update(step, loss=1 / step, samples_per_s=16.0, wait_share=0.012)
    assert len(stream.getvalue().splitlines()) == round(40 * 0.5 / PLAIN_EVERY)
    progress.update(40, score=0.8, best=0.8)
    progress.update(40, score=0.7, best=0.7)  # of more cases
    progress.stop("stopped: done")
    start = "step 40/100 (40%)  20 s, at most 30 s left"
    rest = "loss 0.0250  16.0 samples/s  waiting for data 1.2%"
    assert stream.getvalue().splitlines()[-3:] == [
        f"{start}  Dice 0.8000 (best 0.8000, target 0.9000)  {rest}",
        f"{start}  Dice 0.7000 (best 0.7000, target 0.9000)  {rest}",
        "stopped: done",
    ]
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_is_redrawn_in_place_and_keeps_validations() -> None:
    stream, clock = Terminal(), Hand()
    progress = Progress(stream, clock=clock)
    progress.start(10)
    for step in range(1, 11):
        clock.now += 1
        progress.update(step, loss=0.5, score=0.25 if step == 5 else None, best=0.25)
    progress.stop("end")
    progress.stop()
    text = stream.getvalue()
    assert "step 10/10" in text
    assert "Dice 0.2500 (best 0.2500)" in text
    assert "\x1b[?25h" in text  # the cursor is shown again
    assert text.endswith("end\n")


def test_the_time_left_is_that_of_the_expected_end_or_the_limit() -> None:
    stream, clock = io.StringIO(), Hand()
    progress = Progress(stream, clock=clock)
    progress.start(1500)
    progress.update(1)
    clock.now += 10
    progress.expect(101, 1000.0)
    progress.update(11, score=0.5, best=0.5)
    assert "step 11/101" in stream.getvalue().splitlines()[-1]
    assert "at most 90 s left" in stream.getvalue().splitlines()[-1]
    progress.expect(101, 20.0)
    progress.update(11, score=0.5, best=0.5)
    assert "at most 20 s left" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_gets_every_part_unbroken(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream, clock = Terminal(), Hand()
    progress = Progress(stream, clock=clock)
    progress.start(1500, target=0.9)
    progress.update(1)
    clock.now += 723
    progress.update(1234, loss=0.1234, score=0.8123, best=0.8123, samples_per_s=123.4, wait_share=0.123)
    progress.stop()
    printed = next(text for text in stream.getvalue().split("\x1b[?25l") if "step 1234" in text).split("\x1b")[0]
    lines = [line.strip() for line in printed.splitlines()]
    whole = "step 1234/1500 (82%)  12 min 03 s, at most 156 s left  Dice 0.8123 (best 0.8123, target 0.9000)  "
    assert "  ".join(filter(None, lines)) == whole + "loss 0.1234  123.4 samples/s  waiting for data 12.3%"
    assert max(map(len, lines)) < max(width, len("Dice 0.8123 (best 0.8123, target 0.9000)") + 1)


def test_words_are_wrapped_and_never_broken() -> None:
    assert wrapped("a run in /a/long/path ends", 10) == "a run in\n  /a/long/path\n  ends"
    assert wrapped("two:\n  b  half-open", 12) == "two:\n  b\n    half-open"
    assert wrapped("a  b", None) == "a  b"


def test_a_table_wider_than_the_terminal_breaks_the_names_of_its_columns() -> None:
    rows = [("Class", "NSD at 1 mm", "Cases"), ("spleen", "0.992", "16")]
    assert aligned(rows, (1, 2)) == ["Class   NSD at 1 mm  Cases", "spleen        0.992     16"]
    assert aligned(rows, (1, 2), 20) == ["        NSD at", "Class     1 mm  Cases", "spleen   0.992     16"]
