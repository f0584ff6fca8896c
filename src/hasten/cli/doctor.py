"""`hasten doctor`, `hasten profile` and `hasten tune`: what holds a training back, and the fastest settings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hasten.cli.source import SOURCE_HELP, Overrides, run_from
from hasten.cli.terminal import duration_from, echo, fitted
from hasten.files import expanded
from hasten.observe.rundir import RUN_YAML, empty_folder, json_text, write_json, writing_to

_Outcome = tuple[Any, str, Callable[[], list[str]], Callable[[Path], Path]]
"""The result, its verdict, what makes its lines, and what writes its page."""
PAGE, JSON = "doctor.html", "doctor.json"
"""File names in the folder --out."""
_COMMAND = "hasten.doctor.command"


class DoctorCommand(TyperCommand):
    """Keeps everything after the first `--` as one command, which click would mix with the arguments before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def doctor(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]",
            help="A run's YAML, a run's folder or a data set; or `-- COMMAND ...` for a script. Without: the machine.",
        ),
    ] = None,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=2, help="Training steps to time, at most.")] = 20,
    seconds: Annotated[
        float, typer.Option(parser=duration_from(1), help="Time to spend, about, once the training is ready: 60, 2m.")
    ] = 60.0,
    out: Annotated[Path | None, typer.Option(help=f"Folder for {PAGE} and {JSON}; made if it is missing.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")] = False,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="cuda", help="Script: judge it as if it ran on a CUDA device.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="BEFORE AFTER", help=f"Compare two {JSON} of scripts: seconds a step, and losses."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the verdict only; for a script, print nothing.")
    ] = False,
) -> None:
    """Say what holds a training back, and what to change: of this machine, of a run, or of any script after `--`.

    Exit code: of a script its own; of the machine 1 if something is bad; else 0.
    """
    command = ctx.meta.get(_COMMAND)
    if compare is not None:
        if command is not None or source is not None:
            raise ValueError("--compare: reads what was watched; name no SOURCE and no command beside it")

        from hasten.doctor.script import compare as comparison

        result = comparison.compare(*compare)
        echo(json_text(result).rstrip("\n")) if json else _print("\n".join(comparison.lines(result)))
        return
    if for_ not in (None, "cuda"):
        raise ValueError(f"--for {for_}: the only choice is cuda")
    if command is not None:
        if source is not None or not command:
            raise ValueError("--: name one command after it, and nothing but options before it, as in -- ./run.sh")

        from hasten.doctor.script import doctor_script

        code = doctor_script(
            command,
            steps=steps,
            seconds=seconds,
            out=out,
            assume_cuda=for_ is not None,
            echo=echo if json else _silent if quiet else _print,
            as_json=json,
        )
        raise typer.Exit(code)
    if for_ is not None:
        raise ValueError("--for: is for scripts only: hasten doctor --for cuda -- python train.py")
    _check_folder(out)
    progress = _silent if json or quiet else _progress
    if source is None:
        result, verdict, lines, page = _machine(progress)
    else:
        result, verdict, lines, page = _run(source, overrides or [], steps, seconds, progress)
    if json:
        echo(json_text(result).rstrip("\n"))
    else:
        _print(verdict if quiet else "\n".join(lines()))
    if out is not None:
        with writing_to(out):
            write_json(out / JSON, result)
        written = page(out / PAGE)
        if not json:
            echo(f"page       {written}")
    raise typer.Exit(1 if source is None and result.level == "bad" else 0)


def _check_folder(out: Path | None) -> None:
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a folder")
    if (out / RUN_YAML).exists():
        raise ValueError(f"--out {out}: holds a run, which is left alone; name another folder")


def _machine(progress: Callable[[str], None]) -> _Outcome:
    from hasten.doctor.environment.examine import examine, lines, verdict, write_page

    findings = examine(echo=progress)
    return findings, verdict(findings), partial(lines, findings), partial(write_page, findings)


def _run(source: str, overrides: list[str], steps: int, seconds: float, progress: Callable[[str], None]) -> _Outcome:
    path = expanded(source)
    if not path.is_dir() and (path.suffix == ".py" or path.name.startswith("python")):
        raise ValueError(f"{source}: a script goes after --, as in hasten doctor -- python train.py --its options")
    config = run_from(source, overrides)

    from hasten.config.url import shown
    from hasten.doctor.run.doctor import diagnose_run, lines, write_page

    report = diagnose_run(config, steps=steps, seconds=seconds, echo=progress)
    name = Path(shown(source)).name or source
    return report, report.diagnosis.sentence, partial(lines, report), partial(write_page, report, source=name)


def _print(text: str) -> None:
    echo(fitted(text, sys.stdout))


def _silent(line: str) -> None:
    pass


def _progress(line: str) -> None:
    """Progress is printed to standard error, as the result on standard output may be piped."""
    echo(f"{line} ...", fg="bright_black", err=True)


def profile(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's YAML, a data set, or the folder of a run, which is only read.")
    ],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder for the profile; new or empty.")] = Path("profile"),
    steps: Annotated[int, typer.Option(min=1, help="Steps to look at, after a few to warm up.")] = 10,
) -> None:
    """Show where the time of a training's steps goes: by phase, transform, module, operation and kernel."""
    config = run_from(source, overrides or [])

    from hasten.doctor.profile.take import take
    from hasten.doctor.profile.write import PAGE, SUMMARY, TRACE, write
    from hasten.observe.clock import Clock
    from hasten.observe.ranges import NVTX

    if not NVTX:
        empty_folder(out)
    clock = Clock(tell=lambda text: echo(text, err=True))
    measurement = take(config, steps=steps, with_profiler=not NVTX, clock=clock)
    if NVTX:
        echo(f"a step takes {1e3 * measurement.plain_s:.1f} ms; its ranges were marked for Nsight, no table is written")
        return
    write(measurement, out)
    echo(f"report     {out / PAGE}")
    echo(f"summary    {out / SUMMARY}")
    echo(f"trace      {out / TRACE} (open in https://ui.perfetto.dev or chrome://tracing)")


def tune(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP + " Or the folder of a run.")],
    out: Annotated[Path, typer.Option(help="Folder for tuned.yaml and tune.json; new or empty.")],
    overrides: Overrides = None,
) -> None:
    """Measure the fastest settings of a run on this machine; write them as a run's YAML."""
    config = run_from(source, overrides or [])

    from hasten.doctor.tune import tune as search
    from hasten.report.model import print_table

    result = search(config, out, echo=lambda text: echo(text, err=True))
    print_table(result.table())
    echo("\n".join(result.lines()))
    echo(f"train      hasten train {shlex.quote(str(result.out / 'tuned.yaml'))} --out FOLDER")
