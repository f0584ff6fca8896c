"""`hasten slurm submit|status|collect`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hasten.cli.source import Overrides, Source, config_from
from hasten.cli.terminal import Verbs, echo

if TYPE_CHECKING:
    from hasten.distribute.slurm.jobs import Shape, SlurmJob
    from hasten.distribute.slurm.status import JobStatus

app = typer.Typer(
    cls=Verbs, help="Train on a SLURM cluster: submit jobs, look at them, collect their results.", no_args_is_help=True
)

Submission = Annotated[Path, typer.Argument(metavar="DIR", help="The --out of `hasten slurm submit`.")]


Nodes = Annotated[int | None, typer.Option(help="Nodes of a job (default 1); with --sweep, the most.")]
Gpus = Annotated[int, typer.Option(help="GPUs of a node; each has one process.")]
Tasks = Annotated[int | None, typer.Option(help="Processes of a node on a cluster without GPUs.")]
Sweep = Annotated[
    str | None, typer.Option(metavar="gpus=1,2,4", help="One job for each count (tasks=1,2 without GPUs).")
]
SweepMode = Annotated[
    Literal["strong", "weak"],
    typer.Option(help="strong: the same batch in all jobs; weak: it and the learning rate grow with the processes."),
]
Cpus = Annotated[int, typer.Option(help="Cores of a process; 0 is the cluster's default.")]
Time = Annotated[str | None, typer.Option(help="Time limit of a start, such as 4:00:00.")]
Mem = Annotated[str | None, typer.Option(help="Memory of a node, such as 120G.")]
More = Annotated[
    list[str] | None, typer.Option(metavar="--OPT=VALUE", help="Any other option of sbatch; may be repeated.")
]
Setup = Annotated[
    list[str] | None,
    typer.Option("--setup", "--module", metavar="COMMAND", help="Shell command before the start; may be repeated."),
]
Before = Annotated[int, typer.Option(help="Seconds before the time limit at which the state is saved.")]
Requeues = Annotated[int, typer.Option(help="How often in a row a job may queue itself again with no new step saved.")]


@app.command()
def submit(
    source: Source,
    out: Annotated[Path, typer.Option(help="Folder for scripts and logs (slurm/) and a run's folder for each job.")],
    overrides: Overrides = None,
    nodes: Nodes = None,
    gpus_per_node: Gpus = 0,
    tasks_per_node: Tasks = None,
    sweep: Sweep = None,
    sweep_mode: SweepMode = "strong",
    cpus_per_task: Cpus = 0,
    time: Time = None,
    partition: Annotated[str | None, typer.Option(help="Queue to submit to.")] = None,
    account: Annotated[str | None, typer.Option(help="Account that the time is charged to.")] = None,
    qos: Annotated[str | None, typer.Option(help="Quality of service.")] = None,
    mem: Mem = None,
    constraint: Annotated[str | None, typer.Option(help="Features that the nodes must have.")] = None,
    sbatch_arg: More = None,
    setup: Setup = None,
    python: Annotated[str, typer.Option(help="Python that the nodes start; default the one in use here.")] = "",
    signal_before: Before = 120,
    max_requeues: Requeues = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the files, submit nothing.")] = False,
) -> None:
    """Write batch scripts that train, save before the time limit and requeue themselves; submit them."""
    from hasten.distribute.slurm.jobs import shape_of, sweep_of

    full = shape_of(nodes=nodes, gpus_per_node=gpus_per_node, tasks_per_node=tasks_per_node)
    shapes = [full] if sweep is None else sweep_of(sweep, full, most_nodes=nodes)
    config = config_from(source, overrides or [])
    if time is not None and not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}|UNLIMITED|INFINITE", time):
        raise ValueError(f"--time {time!r}: no time limit of SLURM's; give minutes, HH:MM:SS or D-HH:MM:SS")

    from hasten.cases.sources import load_case_set
    from hasten.config.url import is_url
    from hasten.distribute.slurm.script import Request
    from hasten.distribute.slurm.submit import submit as submitted

    request = Request(
        cpus_per_task=cpus_per_task,
        time=time,
        partition=partition,
        account=account,
        qos=qos,
        mem=mem,
        constraint=constraint,
        extra=tuple(sbatch_arg or ()),
        setup=tuple(setup or ()),
        python=python or sys.executable,
        signal_s=signal_before,
        max_requeues=max_requeues,
    )
    if not is_url(config.data.source) and not Path(config.data.source).exists():
        echo(f"warning: {config.data.source} is not seen from here; the nodes must see it", fg="yellow", err=True)
    elif not is_url(config.data.source):
        load_case_set(config.data.source, config.data.spatial_dims)  # a mistake is reported now, not by a queued job
    jobs = []
    for job in submitted(config, out, shapes, request, mode=sweep_mode, dry_run=dry_run):
        jobs.append(job)
        echo(_job_line(job))
    echo("\n".join(_next(out, shapes, jobs)))


@app.command()
def status(out: Submission) -> None:
    """Show the status of a submission's jobs."""
    from hasten.distribute.slurm.jobs import script_path

    for each in _show_status(out):
        if each.state == "not submitted":
            script = shlex.quote(str(script_path(out, each.job.name)))
            echo(f"{each.job.name}: hand it in by  sbatch {script}")
        elif each.fruitless:
            echo(f"{each.job.name}: its last {each.fruitless} start(s) saved no new step; look at its log")


@app.command()
def collect(out: Submission) -> None:
    """Collect the results of a sweep's jobs; write DIR/scale.json for `hasten scale analyse`."""
    from hasten.distribute.slurm.status import is_active, scale_json
    from hasten.observe.rundir import write_json
    from hasten.scaling.logs import RUNS_JSON

    statuses = _show_status(out)
    write_json(out / RUNS_JSON, scale_json(statuses))
    complete = [each for each in statuses if each.is_done]
    active = [each.job.name for each in statuses if not each.is_done and is_active(each.state)]
    lost = [each.job.name for each in statuses if not each.is_done and not is_active(each.state)]
    if active:
        echo(f"still going: {', '.join(active)}; collect again when they are through")
    if lost:
        echo(f"without a result: {', '.join(lost)}; their logs are in {out / 'slurm'}")
    echo(f"wrote      {out / RUNS_JSON} ({len(complete)} of {len(statuses)} runs are complete)")
    if complete:
        echo(f"analyse    hasten scale analyse {shlex.quote(str(out))}")


def _show_status(out: Path) -> list[JobStatus]:
    from hasten.distribute.slurm.jobs import read_jobs
    from hasten.distribute.slurm.status import job_statuses

    statuses, answer = job_statuses(out, read_jobs(out))
    echo(_table(statuses))
    for note in answer.notes:
        echo(f"note: {note}")
    return statuses


def _job_line(job: SlurmJob) -> str:
    number = f"job {job.job_id}" if job.job_id is not None else "not submitted"
    each = f"{job.gpus_per_node} GPU" if job.gpus_per_node else f"{job.tasks_per_node} process"
    many = job.gpus_per_node > 1 or (not job.gpus_per_node and job.tasks_per_node > 1)
    plural = ("s" if job.gpus_per_node else "es") if many else ""
    return f"{job.name:10} {number:14} {job.nodes} node{'s' if job.nodes > 1 else ''} x {each}{plural}"


def _next(out: Path, shapes: list[Shape], jobs: list[SlurmJob]) -> list[str]:
    folder = shlex.quote(str(out))
    lines = [f"scripts    {out / 'slurm'}"]
    if all(job.job_id is None for job in jobs):
        return [*lines, "submit     the same command without --dry-run, or sbatch each script by hand"]
    lines.append(f"look       hasten slurm status {folder}    hasten watch {shlex.quote(str(out / jobs[0].name))}")
    if len(shapes) > 1:
        lines.append(f"results    hasten slurm collect {folder}, when they are through")
    lines.append(f"cancel     scancel {' '.join(job.job_id for job in jobs if job.job_id is not None)}")
    return lines


def _table(statuses: list[JobStatus]) -> str:
    from hasten.report.model import Table, aligned

    rows = []
    columns = ("run", "job", "processes", "state", "step", "samples/s", "best score", "time")
    for each in statuses:
        state = f"{each.state} ({each.reason})" if each.reason and each.reason != "None" else each.state
        view = each.view
        step, rate, best, time = (view.steps, view.samples_per_s, view.best, view.time_s) if view else (None,) * 4
        total = f"/{view.total}" if view and view.total else ""
        job = each.job
        figures = (
            "-" if step is None else f"{step}{total}",
            "-" if rate is None else f"{rate:.4g}",
            "-" if best is None else f"{best:.4f}",
            "-" if time is None else f"{time:.0f} s",
        )
        rows.append((job.name, job.job_id or "-", str(job.world), state.replace("_", " "), *figures))
    return "\n".join(aligned(Table(columns, tuple(rows))))
