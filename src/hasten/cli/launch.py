"""`hasten launch`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.folds import check_options
from hasten.cli.source import Overrides, Quiet, Resume, SourceUnlessResumed, config_from
from hasten.cli.terminal import duration_from
from hasten.observe.rundir import RUN_YAML

if TYPE_CHECKING:
    from hasten.config.schema import DistributeConfig
    from hasten.distribute.launch.job import Job


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
    rdzv_id: Annotated[str, typer.Option(help="A name of the job, the same on all hosts.")] = "hasten",
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
    from hasten.distribute.launch.job import Job

    check_options(folds, resume=resume)
    shared = _distribute(out, source, overrides or [], resume=resume)
    job = Job(
        nproc=_gpus() if nproc is None else nproc, out=out, nnodes=nnodes, node_rank=node_rank, master=master,
        max_restarts=max_restarts, rdzv_id=rdzv_id, stall_s=stall_seconds, join_s=join_seconds,
    )  # fmt: skip
    job = _with_stall_s(job, shared.timeout_s)
    arguments = [] if source is None else [source, *(overrides or [])]
    options = _options(out, folds=folds, quiet=quiet)
    command = ["-m", "hasten.cli.rank_main", "train", *arguments, *options, *(["--resume"] if resume else [])]
    from hasten.distribute.launch.command import launch as start

    place = _place(job)
    again = shlex.join(["hasten", "launch", *arguments, *place, *options])
    going_on = shlex.join(["hasten", "launch", *place, "--out", str(out), "--resume"])
    code = start(job, command, again=again, resume=again if folds is not None else going_on)
    if code:
        raise typer.Exit(code)


def _options(out: Path, *, folds: str | None, quiet: bool) -> list[str]:
    """The options of `hasten train` for every rank."""
    options = ["--out", str(out)]
    return [*options, *(["--folds", folds] if folds is not None else []), *(["--quiet"] if quiet else [])]


def _distribute(out: Path, source: str | None, overrides: list[str], *, resume: bool) -> DistributeConfig:
    """The run's section `distribute`. All of its settings are checked before any process is started."""
    from hasten.config.load import load_run
    from hasten.config.schema import DistributeConfig

    if resume and (out / RUN_YAML).is_file():
        named = [] if source is None or "=" not in source else [source]
        return load_run(out / RUN_YAML, [*named, *overrides]).distribute
    if resume:
        return DistributeConfig()  # the ranks report the mistake
    if source is None:
        raise ValueError("name a data set or a run's YAML: hasten launch --nproc N SOURCE --out DIR")
    return config_from(source, overrides).distribute


def _with_stall_s(job: Job, timeout_s: float) -> Job:
    """`job` with the default `stall_s` of several ranks: the launcher needs it, as a stopped rank can't end itself."""
    from hasten.distribute.launch.watchdog import default_stall_s

    if job.stall_s is not None or job.nproc * job.nnodes == 1:
        return job
    return replace(job, stall_s=default_stall_s(timeout_s))


def _place(job: Job) -> list[str]:
    """The options for the job's hosts and processes."""
    options = ["--nproc", str(job.nproc)]
    if job.nnodes > 1:
        options += ["--nnodes", str(job.nnodes), "--node-rank", str(job.node_rank)]
    if job.master is not None:
        options += ["--master", job.master]
    return options + (["--max-restarts", str(job.max_restarts)] if job.max_restarts else [])


def _gpus() -> int:
    import torch

    return max(1, torch.cuda.device_count())
