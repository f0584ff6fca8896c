"""What was found about the claims as a table for the terminal, a page and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.guide.claim import Result
from benchmarks.guide.figure import intervals
from hasten.files import replacing
from hasten.report.html import write_page
from hasten.report.model import Chart, Page, Section
from hasten.report.model import Table as PageTable

_STYLE = {"holds": "green", "does not hold": "red", "can't tell": "yellow", "not measured": "dim"}
_COLUMNS = ("claim", "published", "measured here", "verdict")
_NO_FIGURE = "–"
_MEASURED = (
    "Each figure is how many times as fast the named way is as the one it is compared with: the median over interleaved"
    " rounds and the interval that holds it at about 95 %. A claim holds if the whole interval says so, by over 3 %."
    " The published figure, from other hardware, is not required. Nothing is concluded while other programs use the"
    " processor."
)


def summary(results: Sequence[Result]) -> str:
    """One line: how many hold."""
    held, not_held, untold, left = (sum(result.outcome.verdict == verdict for result in results) for verdict in _STYLE)
    messages = [f"{held} of {len(results)} claims hold on this machine", f"{not_held} do not"]
    looks = sum(result.outcome.seems is True for result in results)
    messages += [f"{untold} can't be told ({looks} look as the guides say)"] if untold else []
    messages += [f"{left} not measured"] if left else []
    busy = any(result.outcome.comparison is not None and result.outcome.comparison.busy for result in results)
    return ", ".join(messages) + ("; other programs were running, so measure again on a quiet machine" if busy else "")


def terminal_table(results: Sequence[Result]) -> Table:
    """A row for each claim."""
    table = Table(expand=True, show_lines=True)
    for name, ratio in zip(_COLUMNS, (5, 3, 5, 2), strict=True):
        table.add_column(name, ratio=ratio, overflow="fold")
    for result in results:
        guidance, outcome = result.guidance, result.outcome
        table.add_row(
            f"[bold]{guidance.name}[/bold]\n{guidance.claim}",
            guidance.published or _NO_FIGURE,
            _measured(result),
            f"[{_STYLE[outcome.verdict]}]{outcome.verdict}[/]",
        )
    return table


def _measured(result: Result) -> str:
    outcome = result.outcome
    return "\n".join(filter(None, [outcome.measured, outcome.why, outcome.note]))


def as_json(results: Sequence[Result], *, budget_s: float, environment: dict[str, Any]) -> dict[str, Any]:
    """Everything, with the raw seconds of each arm in the order of the rounds."""
    claims = []
    for result in results:
        guidance, outcome = result.guidance, result.outcome
        output = outcome.comparison
        claims.append(
            {
                "name": guidance.name,
                "claim": guidance.claim,
                "source": guidance.source,
                "published": guidance.published,
                "needs": guidance.needs,
                "verdict": outcome.verdict,
                "measured": outcome.measured,
                "why": outcome.why,
                "seems": outcome.seems,
                "note": outcome.note,
                "difference": outcome.difference,
                "memory_bytes": outcome.memory,
                "took_s": round(result.seconds, 2),
                "arm": outcome.arm,
                "base": output.base if output else None,
                "arms": {
                    name: {"gain": arm.gain, "low": arm.low, "high": arm.high, "verdict": arm.verdict}
                    for name, arm in (output.arms if output else {}).items()
                },
                "seconds": output.seconds if output else {},
                "others_cores": output.others if output else None,
            }
        )
    return {"budget_s": budget_s, "environment": environment, "claims": claims}


def made(out: Path) -> Path:
    """The folder `out`, made where it wasn't there; asked before the measuring, which takes long.

    Raises ValueError if it can't be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out, error) from None
    return out


def _unwritable(out: Path, error: OSError) -> ValueError:
    return ValueError(f"--out {out}: can't be written ({error.strerror or error}); name another folder")


def write(out: Path, results: Sequence[Result], *, budget_s: float, environment: dict[str, Any]) -> tuple[Path, Path]:
    """Write guide.json and guide.html into the folder `out`, and return them.

    Raises ValueError if the folder can't be written.
    """
    facts, page = made(out) / "guide.json", out / "guide.html"
    try:
        with replacing(facts, out / f".guide.json.{os.getpid()}") as file:
            file.write(json.dumps(as_json(results, budget_s=budget_s, environment=environment), indent=1).encode())
    except OSError as error:
        raise _unwritable(out, error) from None
    content = Page(
        title="The tuning guides on this machine",
        verdict=summary(results) + ".",
        cards=_cards(results, environment),
        sections=tuple(_sections(results)),
    )
    return facts, write_page(content, page)


def _cards(results: Sequence[Result], environment: dict[str, Any]) -> tuple[tuple[str, str, str], ...]:
    held = sum(result.outcome.verdict == "holds" for result in results)
    measured = sum(result.outcome.verdict != "not measured" for result in results)
    torch = environment.get("torch") or {}
    devices = torch.get("devices") or []
    device = devices[0]["name"] if devices else "no GPU"
    return (
        ("Hold", f"{held}", f"of {measured} measured"),
        ("Machine", f"{environment.get('cores_usable')} cores", str(environment.get("cpu") or "")),
        ("Device", device, f"torch {torch.get('version', '?')}"),
        ("Took", f"{sum(result.seconds for result in results):.0f} s", str(environment.get("time_utc") or "")),
    )


def _sections(results: Sequence[Result]) -> list[Section]:
    asked = [result for result in results if result.outcome.verdict != "not measured"]
    left = [result for result in results if result.outcome.verdict == "not measured"]
    sections = []
    if asked:
        rows = tuple(
            (
                result.guidance.name,
                result.guidance.claim,
                result.guidance.published or _NO_FIGURE,
                result.outcome.measured,
                result.outcome.verdict + (f": {result.outcome.why}" if result.outcome.why else ""),
            )
            for result in asked
        )
        sections.append(
            Section(
                title="Claims",
                text=_MEASURED,
                charts=(Chart(intervals(asked)),),
                table=PageTable(("name", *_COLUMNS), rows),
            )
        )
        sections.append(Section(title="Every arm", table=_arms(asked), note="Seconds are medians of the rounds."))
    if left:
        lacking = tuple(
            (
                result.guidance.name,
                result.guidance.claim,
                result.guidance.published or _NO_FIGURE,
                result.outcome.why,
            )
            for result in left
        )
        sections.append(Section(title="Not measured", table=PageTable(("name", "claim", "published", "why"), lacking)))
    sources = tuple((result.guidance.name, result.guidance.source) for result in results)
    sections.append(Section(title="Where the claims come from", table=PageTable(("name", "source"), sources)))
    return sections


def _arms(results: Sequence[Result]) -> PageTable:
    rows = []
    for result in results:
        output = result.outcome.comparison
        if output is None:
            continue
        for name, seconds in output.seconds.items():
            arm = output.arms.get(name)
            gain = (f"{arm.gain:.2f}", f"{arm.low:.2f} to {arm.high:.2f}") if arm else ("1", "base")
            memory = result.outcome.memory.get(name)
            rows.append(
                (
                    result.guidance.name,
                    name,
                    f"{output.median(name):.4g}",
                    *gain,
                    f"{memory / 2**20:.1f}" if memory else "",
                    str(len(seconds)),
                )
            )
    columns = ("name", "way", "seconds", "times as fast", "interval", "MiB", "rounds")
    return PageTable(columns, tuple(rows), numeric=(2, 3, 5, 6))
