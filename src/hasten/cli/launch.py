"""`hasten launch` and `hasten slurm submit`: a training of several processes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import Overrides, Quiet, Resume, Source, SourceUnlessResumed, config_from
from hasten.cli.terminal import Verbs, duration_from, echo
from hasten.cli.train import parse_folds


def launch(
    out: Annotated[Path, typer.Option(help="The run's folder, as of `hasten train`.")],
    source: SourceUnlessResumed = None,
    overrides: Overrides = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Processes on this host; by default one for each GPU.")
    ] = None,
    nnodes: Annotated[
        int, typer.Option(min=1, help="Hosts. Run the same command on each, with its own --node-rank.")
    ] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="The number of this host, from 0.")] = 0,
    master: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the hosts meet: host 0 and a free port there.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often all processes restart from the last checkpoint after one has failed.")
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
        from hasten.devices import device_count

        nproc = max(1, device_count())
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
    command = ["-m", "hasten.cli.ranks", *arguments, *options, *(["--resume"] if resume else [])]
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


slurm = typer.Typer(cls=Verbs, help="Train on a SLURM cluster.", no_args_is_help=True)

_MOST = 2**16 - 1
Gpus = Annotated[int, typer.Option(min=0, max=_MOST, help="GPUs of a node; each has one process.")]
Tasks = Annotated[int, typer.Option(min=0, max=_MOST, help="Processes of a node on a cluster without GPUs.")]
Cpus = Annotated[int, typer.Option(min=0, max=_MOST, help="Cores of a process; 0 is the cluster's default.")]
Time = Annotated[str | None, typer.Option(help="Time limit of a start, such as 4:00:00.")]
More = Annotated[
    list[str] | None,
    typer.Option(metavar="--OPT=VALUE", help="Any other option of sbatch, such as --mem=120G; may be repeated."),
]
Setup = Annotated[
    list[str] | None, typer.Option(metavar="COMMAND", help="Shell command before the start; may be repeated.")
]
Before = Annotated[
    int, typer.Option(min=1, max=_MOST, help="Seconds before the time limit at which the state is saved.")
]
Requeues = Annotated[
    int, typer.Option(min=0, max=_MOST, help="How often in a row a job may queue itself again with no new step saved.")
]


@slurm.callback()
def _slurm() -> None:
    """Train on a SLURM cluster."""


@slurm.command()
def submit(
    source: Source,
    out: Annotated[Path, typer.Option(help="The run's folder; its logs/ gets the batch script, settings and logs.")],
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, max=_MOST, help="Nodes of the job.")] = 1,
    gpus_per_node: Gpus = 0,
    tasks_per_node: Tasks = 0,
    cpus_per_task: Cpus = 0,
    time: Time = None,
    partition: Annotated[str | None, typer.Option(help="Queue to submit to.")] = None,
    account: Annotated[str | None, typer.Option(help="Account that the time is charged to.")] = None,
    sbatch_arg: More = None,
    setup: Setup = None,
    python: Annotated[str, typer.Option(help="Python that the nodes start; default the one in use here.")] = "",
    signal_before: Before = 120,
    max_requeues: Requeues = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the files, submit nothing.")] = False,
) -> None:
    """Submit a job that trains, saves before its time limit and requeues itself until it is done."""
    if time is not None and not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}|UNLIMITED|INFINITE", time):
        raise ValueError(f"--time {time!r}: no time limit of SLURM's; give minutes, HH:MM:SS or D-HH:MM:SS")

    from hasten.cases.sources import load_case_set
    from hasten.config.url import is_url
    from hasten.distribute.slurm import SlurmJob
    from hasten.distribute.slurm import submit as submitted

    named = {"--time": time, "--partition": partition, "--account": account}
    job = SlurmJob(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        tasks_per_node=tasks_per_node,
        options=(*(f"{name}={value}" for name, value in named.items() if value is not None), *(sbatch_arg or ())),
        cpus_per_task=cpus_per_task,
        setup=tuple(setup or ()),
        python=python or sys.executable,
        signal_s=signal_before,
        max_requeues=max_requeues,
    )
    config = config_from(source, overrides or [])
    if not is_url(config.data.source) and not Path(config.data.source).exists():
        echo(f"warning: {config.data.source} is not seen from here; the nodes must see it", fg="yellow", err=True)
    elif not is_url(config.data.source):
        load_case_set(config.data.source, config.data.spatial_dims)  # a mistake is reported now, not by a queued job
    script, number = submitted(config, out, job, dry_run=dry_run)
    echo(f"script     {script}")
    if number is None:
        echo(f"submit     sbatch {shlex.quote(str(script))}")
    else:
        echo(f"job        {number}, {job.nodes} x {job.tasks} processes; squeue --job {number}, scancel {number}")
        echo(f"look       hasten watch {shlex.quote(str(out))}")
