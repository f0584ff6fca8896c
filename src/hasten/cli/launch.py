"""`hasten launch`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import Overrides, Quiet, Resume, SourceUnlessResumed, config_from
from hasten.cli.terminal import duration_from
from hasten.cli.train import parse_folds


def launch(
    out: Annotated[Path, typer.Option(help="The run's folder, as of `hasten train`.")],
    source: SourceUnlessResumed = None,
    overrides: Overrides = None,
    nproc: Annotated[int | None, typer.Option(help="Processes on this host; by default one for each GPU.")] = None,
    nnodes: Annotated[int, typer.Option(help="Hosts. Run the same command on each, with its own --node-rank.")] = 1,
    node_rank: Annotated[int, typer.Option(help="The number of this host, from 0.")] = 0,
    master: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the hosts meet: host 0 and a free port there.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(help="How often all processes restart from the last checkpoint after one has failed.")
    ] = 0,
    stall_seconds: Annotated[
        float | None,
        typer.Option(parser=duration_from(1), help="Time without a step after which a process counts as hanging."),
    ] = None,
    join_seconds: Annotated[
        float, typer.Option(parser=duration_from(1), help="How long the hosts wait for one another.")
    ] = 300.0,
    resume: Resume = False,
    folds: Annotated[
        str | None, typer.Option(metavar="N", help="Train this fold of a cross-validation, in --out/foldN.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train with several processes, on one host or on several; logs of each are in OUT/logs."""
    if folds is not None:
        parse_folds(folds, resume=resume)
    if source is None and not resume:
        raise ValueError("name a data set or a run's YAML: hasten launch --nproc N SOURCE --out DIR")
    if source is not None and not resume:
        config_from(source, overrides or [])  # a mistake is reported before any process is started
    from hasten.distribute.launch.agent import launch as start
    from hasten.distribute.launch.job import Job

    if nproc is None:
        import torch

        nproc = max(1, torch.cuda.device_count())
    job = Job(
        nproc=nproc,
        out=out,
        nnodes=nnodes,
        node_rank=node_rank,
        master=master,
        max_restarts=max_restarts,
        stall_s=stall_seconds,
        join_s=join_seconds,
    )
    arguments = [] if source is None else [source, *(overrides or [])]
    options = ["--out", str(out), *(["--folds", folds] if folds is not None else []), *(["--quiet"] if quiet else [])]
    command = ["-m", "hasten.cli.rank_main", "train", *arguments, *options, *(["--resume"] if resume else [])]
    place = ["--nproc", str(nproc)]
    if nnodes > 1:
        place += ["--nnodes", str(nnodes), "--node-rank", str(node_rank)]
    place += ["--master", master] if master is not None else []
    place += ["--max-restarts", str(max_restarts)] if max_restarts else []
    again = shlex.join(["hasten", "launch", *arguments, *place, *options])
    going_on = shlex.join(["hasten", "launch", *place, "--out", str(out), "--resume"])
    code = start(job, command, again=again, resume=again if folds is not None else going_on)
    if code:
        raise typer.Exit(code)
