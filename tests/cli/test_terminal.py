from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hasten.cli.terminal import mistake_text
from tests.processes import Program

HOSTILE = "a\x1b[2J\x9b1m\u202eb\rc"


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


def test_what_the_file_system_refuses_is_one_line() -> None:
    text = mistake_text(OSError(errno.EACCES, "refused", "/data/" + "x" * 5000))
    assert text is not None
    assert text.startswith("/data/xxx")
    assert len(text) < 400
    assert "refused; check the path" in text


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("a bug"), OSError("no file is named"), BrokenPipeError(32, "pipe")]
)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    assert mistake_text(error) is None
