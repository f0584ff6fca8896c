"""Checks that are run one after the other, and the table of how they went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Check:
    part: str
    name: str
    run: Callable[[], None]
    """Raises what is wrong."""


def run_checks(title: str, checks: Iterable[Check]) -> int:
    """Run all of them, print a row for each part and each failure, and return the exit code."""
    counts: dict[str, list[int]] = {}
    failures: list[tuple[Check, str]] = []
    for check in checks:
        count = counts.setdefault(check.part, [0, 0])
        count[0] += 1
        try:
            check.run()
        except Exception as error:
            count[1] += 1
            failures.append((check, f"{type(error).__name__}: {_first_line(error)} ({_place(error)})"))
    table = Table("part", "checks", "failed", title=title, title_justify="left")
    for part, (number, failed) in counts.items():
        table.add_row(part, str(number), str(failed))
    Console().print(table)
    for check, what in failures:
        print(f"FAILED {check.part}: {check.name}: {what}")
    return 1 if failures or not counts else 0


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _place(error: Exception) -> str:
    """The innermost line of Hasten that it went through."""
    result, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/hasten/" in file or "/gpu_dry/" in file:
            result = f"{file.rsplit('/', 2)[-2]}/{file.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return result
