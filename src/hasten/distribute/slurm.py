"""A training as a job of a SLURM cluster: its batch script, which resumes and requeues it, and handing that in."""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hasten.config.load import dump_run
from hasten.config.schema import RunConfig
from hasten.observe.rundir import LOGS, write_text
from hasten.sample.share import share_mistake

SCRIPT, SETTINGS = "job.sbatch", "job.yaml"
"""Batch script and settings, in the folder of the run's logs."""
_CLOSING_S = 300
"""Seconds for which rank 0 may continue to write after the others have ended."""
_TIMEOUT_S = 300
"""SLURM's commands retry for a minute or two while the controller is away, and give up by themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """What a job asks of the cluster: one process for each GPU, or `tasks_per_node` of them where there are none."""

    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 0
    options: tuple[str, ...] = ()
    """Options of sbatch, each as "--option=value"."""
    cpus_per_task: int = 0
    """0 is the cluster's default."""
    setup: tuple[str, ...] = ()
    """Shell commands that prepare the environment, before the ranks are started."""
    python: str = sys.executable
    signal_s: int = 120
    """Seconds before the time limit at which the ranks get a signal to save."""
    max_requeues: int = 3
    """How often in a row a job queues itself again without having saved a new step."""

    def __post_init__(self) -> None:
        if (self.gpus_per_node > 0) == (self.tasks_per_node > 0):
            raise ValueError(
                "--gpus-per-node, --tasks-per-node: give one of them, the processes of a node; each GPU has one"
            )
        for option in self.options:
            if not option.startswith("-") or not option.isprintable():
                raise ValueError(f"--sbatch-arg {option!r}: must be an option of sbatch, as --sbatch-arg=--mem=120G")

    @property
    def tasks(self) -> int:
        """Processes of a node."""
        return self.gpus_per_node or self.tasks_per_node

    @property
    def world(self) -> int:
        return self.nodes * self.tasks


def submit(config: RunConfig, out: Path, job: SlurmJob, *, dry_run: bool = False) -> tuple[Path, str | None]:
    """Write the batch script of a training in the folder `out`, and submit it; return script and job number.

    The job trains with the settings of `config` as they are now. dry_run: write the files only, for sbatch by hand.
    Raises ValueError for settings that can't be trained so, an `out` that is in use, no sbatch, and a script that
    sbatch refuses, with its message; nothing stays behind then.
    """
    if not dry_run and shutil.which("sbatch") is None:
        raise ValueError(
            "sbatch is not on PATH: run this on a login node of the cluster, or add --dry-run to write the files only"
        )
    batch, shared = config.sample.batch_size, config.distribute
    # The stages of a pipeline all see the whole batch.
    if batch is not None and job.world > 1 and shared.strategy != "pipeline":
        mistake = share_mistake(batch, config.train.accumulate, job.world, shared.parts)
        if mistake is not None:
            raise ValueError(mistake)
    out = out.absolute()
    if any(letter in '"\\%' or ord(letter) < 32 for letter in str(out)):
        raise ValueError(f'--out {str(out)!r}: SLURM writes no log to a folder with ", \\ or % in its name; rename it')
    script, settings = out / LOGS / SCRIPT, out / LOGS / SETTINGS
    if script.exists():
        raise ValueError(
            f"{out}: has a job; continue it with `sbatch {shlex.quote(str(script))}`, or choose another --out"
        )
    if out.is_file() or (out.exists() and any(out.iterdir())):
        raise ValueError(f"{out}: is not an empty folder; choose another --out")
    try:
        script.parent.mkdir(parents=True)
        for path, text in ((settings, dump_run(config)), (script, batch_script(job, out, shared.timeout_s))):
            write_text(path, text)
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    if dry_run:
        return script, None
    try:
        return script, _sbatch(script)
    except ValueError:
        shutil.rmtree(script.parent)
        raise


def batch_script(job: SlurmJob, out: Path, timeout_s: float) -> str:
    """The batch script of a training in the folder `out`, whose settings and logs are in its folder of logs.

    out: an absolute path. timeout_s: `distribute.timeout_s`.
    """
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # shell text: `sh` quotes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["sh"] = lambda value: shlex.quote(str(value))
    return templates.get_template("slurm.sbatch.j2").render(
        job=job,
        out=out,
        folder=out / LOGS,
        script=out / LOGS / SCRIPT,
        settings=out / LOGS / SETTINGS,
        wait_s=math.ceil(timeout_s) + _CLOSING_S,
    )


def _sbatch(script: Path) -> str:
    """Submit a batch script; the job's number. Raises ValueError with sbatch's own message."""
    command = ("sbatch", "--parsable", str(script))
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"sbatch: {error}") from None
    # "123", or "123;cluster" of several clusters.
    number = done.stdout.strip().partition(";")[0].rpartition("\n")[2]
    if done.returncode or not number.isdigit():
        message = " ".join((done.stderr.strip() or done.stdout.strip() or "no message").split())
        raise ValueError(f"sbatch refused the job: {message}; correct the options and run the command again")
    return number
