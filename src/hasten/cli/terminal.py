"""Terminal output: no control characters from file names, and errors as one line."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from hasten.config.size import parse_seconds
from hasten.files import printable
from hasten.observe.progress import PLAIN_EVERY, terminal_width, wrapped


class Verbs(TyperGroup):
    """A group of commands whose help has the whole first paragraph of each, where click would cut it off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        first = {name: (verb.help or "").partition("\n\n")[0] for name, verb in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(text.split())) for name, text in first.items()])


def duration_from(least: float) -> Callable[[Any], float]:
    """Parser of an option that is a time: seconds, or such as 2m and 1h30m; of at least `least` seconds."""

    def duration(text: Any) -> float:
        try:
            seconds = float(parse_seconds(text))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if not least <= seconds < math.inf:
            raise typer.BadParameter(f"{text}: must be {least:g} seconds or more")
        return seconds

    return duration


def echo(text: str, *, err: bool = False, **style: Any) -> None:
    """Print `text`, with colours as `typer.secho` takes them."""
    typer.secho(printable(text), err=err, **style)


def tell(text: str) -> None:
    """Print sentences, broken between words where the terminal ends."""
    echo(wrapped(text, terminal_width(sys.stdout)))


def counted(quiet: bool) -> Callable[[int, int, str | Path], None] | None:
    """Shows the first and the last of many cases, or of their files, and others now and then; None to be quiet."""
    due = -math.inf

    def show(done: int, total: int, case: str | Path) -> None:
        nonlocal due
        if time.monotonic() >= due or done == total:
            due = time.monotonic() + PLAIN_EVERY
            echo(f"{done}/{total}  {Path(case).name}", err=True)

    return None if quiet else show


def complain(text: str) -> None:
    """Print an error on standard error."""
    echo(fitted(text, sys.stderr), fg=typer.colors.RED, err=True)


def fitted(text: str, stream: TextIO) -> str:
    """`text` for `stream`; on a terminal its lines break between words."""
    return wrapped(text, terminal_width(stream) if stream.isatty() else None)


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return fitted(printable(super().format(record)), sys.stderr)


def guard_messages() -> None:
    """Make log lines and warnings, which go to standard error on their own, pass through `printable` too."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Printable())
    original = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: printable(original(*args, **kwargs))


def mistake_text(error: BaseException) -> str | None:
    """The message of an error whose cause is outside the program; None for one that needs its traceback."""
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{str(error.filename)[:300]}: {error.strerror}; check the path and its disk, or name another"
    shortage = sys.modules.get("hasten.runtime.out_of_memory")
    if isinstance(error, MemoryError) or (shortage is not None and shortage.out_of_memory(error)):
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"memory ran out ({reason}); use a smaller sample.patch, sample.batch_size, infer.patch or network"
    return None
