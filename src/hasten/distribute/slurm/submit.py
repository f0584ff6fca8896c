"""Writing the batch scripts of a submission and submitting them."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from hasten.config.load import dump_run
from hasten.config.schema import RunConfig
from hasten.config.user_code import digest_of
from hasten.distribute.slurm.jobs import (
    FOLDER,
    JOBS_JSON,
    Shape,
    SlurmJob,
    read_jobs,
    script_path,
    settings_path,
    write_jobs,
)
from hasten.distribute.slurm.queue import require_sbatch, submit_script
from hasten.distribute.slurm.script import Request, batch_script, check_folder, check_request
from hasten.distribute.weak_scaling import weakly_scaled
from hasten.files import replacing
from hasten.sample.share import share_mistake

Mode = Literal["strong", "weak"]


def submit(
    config: RunConfig,
    out: Path,
    shapes: Sequence[Shape],
    request: Request,
    *,
    mode: Mode = "strong",
    dry_run: bool = False,
) -> Iterator[SlurmJob]:
    """Write a batch script for each shape to `out`/slurm and submit them; return the jobs with SLURM's numbers.

    Each job trains in its own folder below `out`, `Shape.name`, with the settings of `config` as they are now.
    dry_run: write the files only. Everything is checked before anything is written.
    Raises ValueError for settings that can't be trained so, a folder that holds a submission, no sbatch, and a script
    that sbatch refuses (with its message); jobs that were submitted before stay, and are recorded.
    """
    if not dry_run:
        require_sbatch()
    check_request(request)
    out = out.absolute()
    check_folder(out)
    settings = [settings_at(config, shape.world, mode) for shape in shapes]
    _require_free(out, [shape.name for shape in shapes])
    jobs = _write_scripts(out, shapes, settings, request, mode)
    if dry_run:
        yield from jobs
        return
    for place, job in enumerate(jobs):
        try:
            jobs[place] = dataclasses.replace(job, job_id=submit_script(script_path(out, job.name)))
        except ValueError as error:
            raise ValueError(f"{error}{_rest(out, jobs[:place], jobs[place:])}") from None
        # Saved immediately: a job whose number is lost can't be tracked.
        write_jobs(out, jobs)
        yield jobs[place]


def settings_at(config: RunConfig, world: int, mode: Mode) -> RunConfig:
    """The settings of a run on `world` processes: `weak` gives each the batch that a single one has in `config`.

    Raises ValueError for a batch that can't be dealt among them.
    """
    if mode == "weak":
        batch = config.sample.batch_size
        if batch is None:
            raise ValueError(
                "--sweep-mode weak: sample.batch_size is open, so there is nothing to multiply; add "
                "sample.batch_size=N, the batch of one process"
            )
        config = weakly_scaled(config, world, batch)
    batch, shared = config.sample.batch_size, config.distribute
    # The stages of a pipeline all see the whole batch.
    if batch is not None and world > 1 and shared.strategy != "pipeline":
        mistake = share_mistake(batch, config.train.accumulate, world, shared.parts)
        if mistake is not None:
            raise ValueError(mistake)
    return config


def _require_free(out: Path, names: Sequence[str]) -> None:
    """Raise ValueError if `out` holds submitted jobs, edited scripts, or runs."""
    look = f"hasten slurm status {shlex.quote(str(out))}"
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: is a file; choose another --out")
    if (out / FOLDER / JOBS_JSON).exists():
        jobs = read_jobs(out)
        sent = [f"{job.name} as {job.job_id}" for job in jobs if job.job_id is not None]
        if sent:
            raise ValueError(
                f"{out}: holds a submission ({', '.join(sent)}); look at it by `{look}`, or choose another --out"
            )
        for job in jobs:
            script = script_path(out, job.name)
            if script.exists() and digest_of(script.read_bytes()) != job.digest:
                raise ValueError(
                    f"{script}: was edited since it was written, and would be lost; hand it in by "
                    f"`sbatch {shlex.quote(str(script))}`, or remove it"
                )
    for name in names:
        if (out / name).exists():
            raise ValueError(f"{out / name}: exists, and is where {name} would train; choose another --out")


def _write_scripts(
    out: Path, shapes: Sequence[Shape], settings: Sequence[RunConfig], request: Request, mode: Mode
) -> list[SlurmJob]:
    jobs: list[SlurmJob] = []
    try:
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        for shape, config in zip(shapes, settings, strict=True):
            script, run = script_path(out, shape.name), settings_path(out, shape.name)
            timeout_s = config.distribute.timeout_s
            text = batch_script(
                name=shape.name,
                shape=shape,
                request=request,
                script=script,
                run=run,
                out=out / shape.name,
                timeout_s=timeout_s,
            )
            for path, content in ((run, dump_run(config)), (script, text)):
                with replacing(path, path.with_name(f".{path.name}")) as file:
                    file.write(content.encode())
            jobs.append(
                SlurmJob(
                    **dataclasses.asdict(shape),
                    name=shape.name,
                    world=shape.world,
                    strategy=_strategy(config, shape.world),
                    seed=config.train.seed,
                    mode=mode,
                    digest=digest_of(text.encode()),
                )
            )
        write_jobs(out, jobs)
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    return jobs


def _strategy(config: RunConfig, world: int) -> str:
    """The strategy that `auto` becomes."""
    if world == 1:
        return "single"
    return "ddp" if config.distribute.strategy == "auto" else config.distribute.strategy


def _rest(out: Path, sent: Sequence[SlurmJob], remaining: Sequence[SlurmJob]) -> str:
    """The end of the message after a refusal: the submitted jobs and the remaining commands."""
    if not sent:
        return "; correct the options and run the command again"
    scripts = " ".join(shlex.quote(str(script_path(out, job.name))) for job in remaining)
    submitted = ", ".join(f"{job.name} as {job.job_id}" for job in sent)
    return f"; already in the queue: {submitted}. Mend and hand in the others by hand, each by `sbatch FILE`: {scripts}"
