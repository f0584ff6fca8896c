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
from hasten.cli.terminal import duration_from, echo, fitted, tell
from hasten.files import expanded
from hasten.observe.rundir import RUN_YAML, empty_folder, json_text, write_json, writing_to

PAGE, JSON = "doctor.html", "doctor.json"
"""File names in the folder --out."""
_COMMAND = "hasten.doctor.command"
_TAKES = {
    "--compare": {"compare"},
    "a script after --": {"steps", "seconds", "out", "for_"},
    "a run": {"source", "overrides", "steps", "seconds", "out"},
    "the machine": {"out"},
}
"""What applies to each, beside --json and --quiet."""
_Outcome = tuple[Any, str, Callable[[], list[str]], Callable[[Path], Path] | None, int]
"""The result, its verdict for --quiet ("" prints nothing), what makes its lines and its page, and the exit code."""


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
            metavar="SOURCE",
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
    _check_options(ctx, command)
    if for_ not in (None, "cuda"):
        raise ValueError(f"--for {for_}: the only choice is cuda")
    if out is not None:
        _check_folder(out)
    # To standard error, as the result on standard output may be piped.
    progress = None if json or quiet else lambda line: echo(f"{line} ...", fg="bright_black", err=True)
    if compare is not None:
        outcome = _comparison(*compare)
    elif command is not None:
        outcome = _script(command, steps=steps, seconds=seconds, assume_cuda=for_ is not None, quiet=json)
    elif source is not None:
        outcome = _run(source, overrides or [], steps=steps, seconds=seconds, echo=progress)
    else:
        outcome = _machine(progress)
    result, verdict, lines, page, exit_code = outcome
    if json:
        echo(json_text(result).rstrip("\n"))
    elif text := verdict if quiet else "\n".join(lines()):
        echo(fitted(text, sys.stdout))
    if out is not None:
        with writing_to(out):
            write_json(out / JSON, result)
        written = page(out / PAGE) if page is not None else out / JSON
        if not json and (verdict or not quiet):
            echo(f"written    {written}")
    raise typer.Exit(exit_code)


def _check_options(ctx: typer.Context, command: list[str] | None) -> None:
    """Raises ValueError for what would be ignored."""
    given = {name for name in ctx.params if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")}
    mode = "a script after --" if command is not None else "a run" if "source" in given else "the machine"
    mode = "--compare" if "compare" in given else mode
    unused = given - {"json", "quiet"} - _TAKES[mode]
    ignored = []
    for each in ctx.command.params:
        if each.name in unused:
            name = {"source": "SOURCE", "overrides": "a.b=value"}.get(each.name, each.opts[0])
            fits = " and ".join(other for other, names in _TAKES.items() if each.name in names)
            ignored.append(f"{name} (for {fits})")
    ignored += ["-- COMMAND"] if command is not None and "compare" in given else []
    if ignored:
        raise ValueError(f"{', '.join(ignored)}: not for {mode}, which would ignore it; leave it out")
    if {"json", "quiet"} <= given:
        raise ValueError("--json, --quiet: each says what is printed; name one")
    if command == []:
        raise ValueError("--: name a command after it, as in hasten doctor -- ./run.sh")


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a folder")
    if (out / RUN_YAML).exists():
        raise ValueError(f"--out {out}: holds a run, which is left alone; name another folder")


def _comparison(before: Path, after: Path) -> _Outcome:
    from hasten.doctor.script.compare import compare, lines

    result = compare(before, after)
    return result, lines(result)[0], partial(lines, result), None, 0


def _script(command: list[str], **options: Any) -> _Outcome:
    from hasten.doctor.script.doctor import content_of, diagnose_script, lines, write_page

    report = diagnose_script(command, **options)
    page = partial(write_page, report) if report.diagnosis is not None else None
    return content_of(report), "", partial(lines, report), page, report.exit_code


def _machine(progress: Callable[[str], None] | None) -> _Outcome:
    from hasten.doctor.environment.examine import examine, lines, verdict, write_page

    found = examine(echo=progress)
    return found, verdict(found), partial(lines, found), partial(write_page, found), int(found.level == "bad")


def _run(source: str, overrides: list[str], **options: Any) -> _Outcome:
    path = expanded(source)
    if not path.is_dir() and (path.suffix == ".py" or path.name.startswith("python")):
        raise ValueError(f"{source}: a script goes after --, as in hasten doctor -- python train.py --its options")
    config = run_from(source, overrides)

    from hasten.config.url import shown
    from hasten.doctor.run.doctor import diagnose_run, lines, write_page

    report = diagnose_run(config, **options)
    page = partial(write_page, report, source=Path(shown(source)).name or source)
    return report, report.diagnosis.sentence, partial(lines, report), page, 0


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

    from hasten.doctor.profile.take import PAGE, SUMMARY, TRACE, take, write
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
    from hasten.report.model import table_lines

    result = search(config, out, echo=lambda text: echo(text, err=True))
    tell("\n".join(table_lines(result.table())))
    echo("\n".join(result.lines()))
    echo(f"train      hasten train {shlex.quote(str(result.out / 'tuned.yaml'))} --out FOLDER")
