"""`hasten scale SOURCE`, `hasten scale analyse` and `hasten scale predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hasten.cli.source import Overrides, Source, config_from
from hasten.cli.terminal import Verbs, echo, tell

_HELP = ("-h", "--help")


class _RunsByDefault(Verbs):
    """`hasten scale RUN.yaml ...` is `hasten scale run RUN.yaml ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunsByDefault,
    help="Train on 1, 2, 4, ... workers and say what more of them gain, or read the logs of such trainings.",
    no_args_is_help=True,
)

Drop = Annotated[float, typer.Option(min=0, help="Report a fall of the metric that is larger than this.")]
Target = Annotated[
    float | None,
    typer.Option(help="Compare the time to this Dice; without it the highest that every run reached."),
]


@app.command()
def run(
    source: Source,
    worlds: Annotated[str, typer.Option(help="Counts of workers, such as 1,2,4.")],
    overrides: Overrides = None,
    mode: Annotated[
        Literal["strong", "weak"],
        typer.Option(help="strong: the same batch on any count; weak: it and the learning rate grow with the count."),
    ] = "strong",
    strategies: Annotated[str, typer.Option(help="Strategies, such as ddp,fsdp.")] = "ddp",
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0,1,2; 3 are needed to separate a drop from noise.")] = "0",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study; default NAME-scale. Resumes the study in it.")
    ] = None,
    target: Target = None,
    drop: Drop = 0.05,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each worker; by default an equal share of the cores.")
    ] = None,
    oversubscribe: Annotated[bool, typer.Option("--oversubscribe", help="Allow more workers than cores.")] = False,
) -> None:
    """Train SOURCE on each count of workers and compare them. `hasten scale SOURCE` is short for it."""
    counts, of_seeds = _numbers("--worlds", worlds), _numbers("--seeds", seeds)

    from hasten.config.url import shown
    from hasten.scaling.analyse import analyse as analysed
    from hasten.scaling.logs import DONE
    from hasten.scaling.page import print_analysis, write
    from hasten.scaling.study import StudyRequest, run_study

    request = StudyRequest(
        worlds=counts,
        strategies=_split(strategies),  # type: ignore[arg-type]  # checked there
        seeds=of_seeds,
        mode=mode,
        threads=threads,
        oversubscribe=oversubscribe,
    )
    config = config_from(source, overrides or [])
    place = out if out is not None else Path(f"{Path(shown(source)).stem or 'run'}-scale")
    entries = run_study(config, place, request, echo=lambda line: echo(line, err=True))
    failed = [entry for entry in entries if entry["status"] not in DONE]
    baseline = min(entry["world"] for entry in entries)
    goal = target if target is not None else config.train.target
    try:
        analysis = analysed(place, baseline=baseline, drop=drop, target=goal)
    except ValueError:
        if not failed:
            raise
        raise ValueError(f"{place}: too few trainings succeeded; {failed[0]['folder']}: {failed[0]['why']}") from None
    print_analysis(analysis, tell)
    echo(f"page       {write(analysis, place)}")
    if failed:
        raise typer.Exit(1)


@app.command()
def analyse(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a study, or of log_*.csv files.")],
    baseline: Annotated[int, typer.Option(min=1, help="Workers that speed-up is measured against.")] = 1,
    epoch: Annotated[
        str | None,
        typer.Option(
            metavar="N|median",
            help="Epoch, from 0, whose time is compared. Default: 4 for logs by others, as the study they are from "
            "did; the median of all but the first for Hasten's own runs.",
        ),
    ] = None,
    drop: Drop = 0.05,
    target: Target = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the page and JSON; made if it is missing.")] = None,
) -> None:
    """Analyse the logs of a scaling study: speed-up, efficiency, which strategy wins, and where quality falls."""
    chosen: Any = epoch if epoch in (None, "median") else _whole("--epoch", epoch)

    from hasten.scaling.analyse import analyse as analysed
    from hasten.scaling.page import print_analysis, write

    analysis = analysed(folder, baseline=baseline, epoch=chosen, drop=drop, target=target)
    print_analysis(analysis, tell)
    if out is not None:
        echo(f"page       {write(analysis, out)}")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a study, or of log_*.csv files.")],
    workers: Annotated[str, typer.Option(metavar="N,N,...", help="Counts of workers (GPUs).")] = "8,16,32,64,128,256",
    mode: Annotated[
        Literal["weak", "strong"],
        typer.Option(help="Each worker keeps its batch, or the batch is split; logs may state it themselves."),
    ] = "weak",
) -> None:
    """Predict how a training scales to more workers, with error bars, from its logs on three counts or more."""
    from hasten.report.model import table_lines
    from hasten.scaling.predict import fit_logs, table_of
    from hasten.scaling.predict import predict as predicted

    counts = _numbers("--workers", workers)
    if not counts or min(counts) < 1:
        raise ValueError(f"--workers {workers}: give whole numbers of 1 or more with commas, such as 8,16")
    fit = fit_logs(folder, mode)
    echo("\n".join(table_lines(table_of([predicted(fit, count) for count in counts]))))
    tell(fit.note)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(option: str, text: str) -> tuple[int, ...]:
    return tuple(_whole(option, part) for part in _split(text))


def _whole(option: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{option}: {text!r} is no whole number")
    return int(text)
