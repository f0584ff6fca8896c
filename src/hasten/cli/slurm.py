"""`hasten slurm submit`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import Overrides, Source, config_from
from hasten.cli.terminal import Verbs, echo

app = typer.Typer(cls=Verbs, help="Train on a SLURM cluster.", no_args_is_help=True)

Gpus = Annotated[int, typer.Option(help="GPUs of a node; each has one process.")]
Tasks = Annotated[int, typer.Option(help="Processes of a node on a cluster without GPUs.")]
Cpus = Annotated[int, typer.Option(help="Cores of a process; 0 is the cluster's default.")]
Time = Annotated[str | None, typer.Option(help="Time limit of a start, such as 4:00:00.")]
More = Annotated[
    list[str] | None,
    typer.Option(metavar="--OPT=VALUE", help="Any other option of sbatch, such as --mem=120G; may be repeated."),
]
Setup = Annotated[
    list[str] | None, typer.Option(metavar="COMMAND", help="Shell command before the start; may be repeated.")
]
Before = Annotated[int, typer.Option(help="Seconds before the time limit at which the state is saved.")]
Requeues = Annotated[int, typer.Option(help="How often in a row a job may queue itself again with no new step saved.")]


@app.callback()
def slurm() -> None:
    """Train on a SLURM cluster."""


@app.command()
def submit(
    source: Source,
    out: Annotated[Path, typer.Option(help="The run's folder; its logs/ gets the batch script, settings and logs.")],
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 1,
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
