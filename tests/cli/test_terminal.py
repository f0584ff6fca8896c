from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hasten.cli.terminal import counted, mistake_text
from hasten.files import printable
from hasten.observe.progress import PLAIN_EVERY
from tests.processes import Program

HOSTILE = "a\x1b[2J\x9b1m\u202eb\rc"


def test_nothing_that_steers_a_terminal_is_printed() -> None:
    assert printable(HOSTILE) == "a\\u001b[2J\\u009b1m\\u202eb\\rc"
    assert printable("naïve 心臓.nii.gz\n\tsecond line") == "naïve 心臓.nii.gz\n\tsecond line"
    assert printable("\udcff\U000e0041\x7f") == "\\udcff\\udb40\\udc41\\u007f"


def test_a_hostile_file_name_in_errors_warnings_and_listings(tmp_path: Path) -> None:
    (tmp_path / HOSTILE).mkdir()
    (tmp_path / f"remote/https/{HOSTILE}").mkdir(parents=True)
    said = (
        "import logging, warnings, hasten.cli.terminal as t; t.guard_messages();"
        f"logging.getLogger('hasten').warning('%s', {HOSTILE!r}); warnings.warn({HOSTILE!r})"
    )
    hasten = ["-m", "hasten"]
    for words in (["-c", said], [*hasten, "plan", tmp_path / HOSTILE], [*hasten, "cache", "ls", "--dir", tmp_path]):
        printed = "".join(Program(*map(str, words)).communicate())
        assert "a\\u001b[2J\\u009b1m\\u202eb\\rc" in printed
        assert not set(printed) & set("\x1b\x9b\u202e\r"), printed


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EACCES, "access"), (errno.ENOSPC, "free some space"), (errno.ENAMETOOLONG, "shorter")]
)
def test_what_the_file_system_refuses_is_one_line(number: int, remedy: str) -> None:
    text = mistake_text(OSError(number, "refused", "/data/" + "x" * 5000))
    assert text is not None
    assert text.startswith("/data/xxx")
    assert len(text) < 400
    assert "refused; " in text
    assert remedy in text


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("a bug"), OSError("no file is named"), BrokenPipeError(32, "pipe")]
)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    assert mistake_text(error) is None


def test_of_many_cases_the_first_the_last_and_some_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter(range(1000))
    show = counted(lambda: float(next(now)))
    for done in range(1, 201):
        show(done, 200, f"case{done}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 200 / PLAIN_EVERY + 1
    second = 1 + int(PLAIN_EVERY)
    assert lines[:2] == ["1/200  case1", f"{second}/200  case{second}  about {200 - second} s left"]
    assert lines[-1] == "200/200  case200"
