"""`hasten scale predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hasten.cli.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.study.scale.predict.links import Network

COUNTS = "8,16,32,64,128,256,512,1024"

_Source = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE", help="A folder of scaling logs, one that `hasten scale` wrote, or the run of one process."
    ),
]
_Mode = Annotated[
    Literal["weak", "strong"] | None,
    typer.Option(help="Each worker keeps its batch, or the batch is split. Default: as in the logs, else weak."),
]


def predict(
    source: _Source,
    workers: Annotated[str, typer.Option(metavar="N,N,...", help="Counts of workers (GPUs).")] = COUNTS,
    link: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run: what joins all workers: a name (default ib200) or a JSON file."),
    ] = None,
    inter: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run: what joins nodes, in place of --link.")
    ] = None,
    intra: Annotated[
        str, typer.Option(metavar="NAME", help="With --inter: what joins the GPUs of a node.")
    ] = "nvlink3",
    gpus_per_node: Annotated[int, typer.Option(min=1, help="With --inter: GPUs of a node.")] = 8,
    adapters: Annotated[int, typer.Option(min=1, help="With --inter: network adapters of a node.")] = 1,
    mode: _Mode = None,
    strategy: Annotated[str | None, typer.Option(metavar="NAME", help="Logs: which of several strategies.")] = None,
    gradient_mib: Annotated[
        float | None, typer.Option(min=0, help="Run: MiB of gradients of a step, in place of its checkpoint's.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Run: epochs of the training, which share its start-up; default the run's own.")
    ] = None,
    imbalance: Annotated[
        float, typer.Option(min=0, help="Run: the largest part of the data over the mean one, less 1.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for prediction.json and prediction.html.")] = None,
) -> None:
    """Predict how a training scales to more workers, with error bars: from its logs, or one run and a network."""
    counts = _counts(workers)
    if epochs is not None and epochs <= 0:
        raise ValueError(f"--epochs {epochs:g}: give more than 0")

    from hasten.report.terminal import print_table
    from hasten.study.scale.predict.fit import predictions
    from hasten.study.scale.predict.page import table_of, verdict, write
    from hasten.study.scale.predict.source import source_of

    network = _network(link, inter, intra, gpus_per_node, adapters)
    data = source_of(
        source,
        network=network,
        mode=mode,
        strategy=strategy,
        gradient_mib=gradient_mib,
        epochs=epochs,
        imbalance=imbalance,
    )
    if data.mode == "strong" and data.batch is not None:
        counts = _within_batch(counts, data.batch, explicit=workers != COUNTS)
    forecast = predictions(data.fitted, counts, data.mode)
    print_table(table_of(forecast, data))
    for line in (verdict(forecast, data), *data.fitted.notes):
        echo(line)
    if out is not None:
        for path in write(out, forecast, data):
            echo(f"wrote      {path}")


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= 10**6 for part in parts):
        raise ValueError(f"--workers {text}: give whole numbers from 1 to 1000000 with commas, such as {COUNTS}")
    return sorted({int(part) for part in parts})


def _network(link: str | None, inter: str | None, intra: str, per_node: int, adapters: int) -> Network | None:
    from hasten.study.scale.predict.links import Network, link_of

    if link is not None and inter is not None:
        raise ValueError(f"--link {link}: joins all workers, and --inter {inter} only nodes; give one of them")
    if link is not None:
        return Network(between=link_of(link))
    if inter is None:
        return None
    return Network(
        between=link_of(inter, "--inter"), inside=link_of(intra, "--intra"), per_node=per_node, adapters=adapters
    )


def _within_batch(counts: Sequence[int], batch: int, *, explicit: bool) -> list[int]:
    """The worker counts for which each worker gets at least one sample of the batch."""
    fits = [count for count in counts if count <= batch]
    if len(fits) < len(counts) and (explicit or not fits):
        wrong = next(count for count in counts if count > batch)
        raise ValueError(
            f"--workers {wrong}: a batch of {batch} can't be dealt to {wrong} workers; give fewer by --workers, or "
            "leave out --mode strong"
        )
    if len(fits) < len(counts):
        echo(f"left out   more than {batch} workers: the batch holds {batch} samples", err=True)
    return fits
