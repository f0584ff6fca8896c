"""What was found about the claims as a table for the terminal and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.guide.claim import Result
from hasten.observe.rundir import write_json

_STYLE = {"holds": "green", "does not hold": "red", "can't tell": "yellow", "not measured": "dim"}
_COLUMNS = ("claim", "published", "measured here", "verdict")
_NO_FIGURE = "–"


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


def write(out: Path, results: Sequence[Result], *, budget_s: float, environment: dict[str, Any]) -> Path:
    """Write guide.json into the folder `out`, and return it."""
    write_json(out / "guide.json", as_json(results, budget_s=budget_s, environment=environment))
    return out / "guide.json"
