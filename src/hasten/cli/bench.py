"""`hasten bench guide`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measure on this machine what others have published.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    pass  # Keeps `guide` a command of its own while it is the only one.


@app.command()
def guide(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure this claim only; may be given several times.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=5, help="Bound on the whole of it.")] = 180.0,
    out: Annotated[Path | None, typer.Option(help="Folder for guide.json and guide.html.")] = None,
) -> None:
    """Say which advice of the published tuning guides holds on this machine."""
    from rich.console import Console

    from hasten.observe.env import environment
    from hasten.study.guide.claims import CLAIMS
    from hasten.study.guide.run import chosen, run_guide
    from hasten.study.guide.show import made, summary, terminal_table, write

    claims = chosen(CLAIMS, only or [])
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
            typer.echo(f"wrote      {path}")
