"""Which advice of the published tuning guides holds on this machine: `python -m benchmarks.guide`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.terminal import duration_from, echo

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def measure(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure this claim only; may be given several times.")
    ] = None,
    seconds: Annotated[float, typer.Option(parser=duration_from(5), help="Bound on the whole of it.")] = 180.0,
    out: Annotated[Path | None, typer.Option(help="Folder for guide.json.")] = None,
) -> None:
    """Say which advice of the published tuning guides holds on this machine."""
    from rich.console import Console

    from benchmarks.guide.claims import CLAIMS
    from benchmarks.guide.run import as_json, chosen, run_guide, summary, terminal_table
    from hasten.observe.env import environment
    from hasten.observe.rundir import write_json

    claims = chosen(CLAIMS, only or [])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # before the measuring, which takes long
    facts = environment()
    console = Console()
    with Console(stderr=True).status("") as status:
        results = run_guide(claims, seconds=seconds, tell=lambda guidance: status.update(f"{guidance.name} ..."))
    console.print(terminal_table(results))
    console.print(summary(results))
    if out is not None:
        write_json(out / "guide.json", {"budget_s": seconds, "environment": facts, "claims": as_json(results)})
        echo(f"wrote      {out / 'guide.json'}")


if __name__ == "__main__":
    try:
        app()
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
