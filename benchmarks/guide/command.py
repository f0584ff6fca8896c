"""What `hasten bench guide` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hasten.cli.terminal import echo


def measure(only: Sequence[str], *, seconds: float, out: Path | None) -> None:
    """Measure the claims that `only` names, all if it is empty; print a table, and write the files into `out`."""
    from rich.console import Console

    from benchmarks.guide.claims import CLAIMS
    from benchmarks.guide.run import chosen, run_guide
    from benchmarks.guide.show import made, summary, terminal_table, write
    from hasten.observe.env import environment

    claims = chosen(CLAIMS, only)
    if out is not None:
        made(out)
    facts = environment()
    console = Console()
    with Console(stderr=True).status("") as status:
        results = run_guide(claims, seconds=seconds, tell=lambda guidance: status.update(f"{guidance.name} ..."))
    console.print(terminal_table(results))
    console.print(summary(results))
    if out is not None:
        for path in write(out, results, budget_s=seconds, environment=facts):
            echo(f"wrote      {path}")
