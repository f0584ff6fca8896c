"""The text of a job's batch script."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hasten.distribute.slurm.jobs import Shape

_PLAIN = re.compile(r"[\w.,:/@=+-]+")
_CLOSING_S = 300
"""Seconds for which rank 0 may continue to write after the others have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The resources that a job requests besides its processes. None and 0 leave them to the cluster."""

    cpus_per_task: int = 0
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    mem: str | None = None
    """Memory of each node."""
    constraint: str | None = None
    extra: tuple[str, ...] = ()
    """Further options of sbatch, each as "--option=value"; they win over the others."""
    setup: tuple[str, ...] = ()
    """Shell commands that prepare the environment, before the ranks are started."""
    python: str = sys.executable
    signal_s: int = 120
    """Seconds before the time limit at which the ranks get a signal to save."""
    max_requeues: int = 3
    """How often in a row a job queues itself again without having saved a new step."""


def check_request(request: Request) -> None:
    """Raise ValueError naming an option that no batch script can hold or that makes no sense."""
    for option, number, least in (
        ("--cpus-per-task", request.cpus_per_task, 0),
        ("--signal-before", request.signal_s, 1),
        ("--max-requeues", request.max_requeues, 0),
    ):
        if number < least:
            raise ValueError(f"{option} {number}: must be {least} or more")
    if request.signal_s > 65535:
        raise ValueError(f"--signal-before {request.signal_s}: SLURM takes at most 65535 seconds")
    for option, text in _texts(request):
        if not text.strip() or any(letter in text for letter in '\n\r"\\'):
            raise ValueError(f"{option} {text!r}: must be a plain value on one line")
    for argument in request.extra:
        if not argument.startswith("-") or "\n" in argument or "\r" in argument:
            raise ValueError(f"--sbatch-arg {argument!r}: must be an option of sbatch, as --sbatch-arg=--reservation=R")
    if not request.python.strip() or "\n" in request.python:
        raise ValueError(f"--python {request.python!r}: must name the Python that the nodes start")


def check_folder(out: Path) -> None:
    """Raise ValueError if SLURM could not write a log below `out`: it replaces some letters in the name."""
    wrong = sorted({letter for letter in str(out) if letter in '"\\%' or ord(letter) < 32})
    if wrong:
        raise ValueError(
            f"--out {str(out)!r}: SLURM writes no log to a folder with {wrong[0]!r} in its name; rename it"
        )


def batch_script(
    *, name: str, shape: Shape, request: Request, script: Path, run: Path, out: Path, timeout_s: float
) -> str:
    """The batch script that trains the settings in `run` in the folder `out`, and resumes where it was stopped.

    script: where the text will lie; logs and notes are written next to it. timeout_s: `distribute.timeout_s`. All paths
    are absolute.
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
    return templates.get_template("job.sbatch.j2").render(
        name=name,
        shape=shape,
        request=request,
        directives=list(_directives(name, shape, request, script.parent)),
        wait_s=math.ceil(timeout_s) + _CLOSING_S,
        script=script,
        run=run,
        out=out,
        folder=script.parent,
    )


def _directives(name: str, shape: Shape, request: Request, folder: Path) -> Iterator[str]:
    yield f"--job-name=hasten-{name}"
    yield f"--nodes={shape.nodes}"
    yield f"--ntasks-per-node={shape.tasks_per_node}"
    if shape.gpus_per_node:
        # Per node and not per task: each rank picks its own GPU among all of them, which NCCL needs to see.
        yield f"--gres=gpu:{shape.gpus_per_node}"
    if request.cpus_per_task:
        yield f"--cpus-per-task={request.cpus_per_task}"
    for option, text in _texts(request):
        yield f"{option}={text if _PLAIN.fullmatch(text) else f'{chr(34)}{text}{chr(34)}'}"
    yield f'--output="{folder}/{name}-%j.log"'


def _texts(request: Request) -> Iterator[tuple[str, str]]:
    for name in ("time", "partition", "account", "qos", "mem", "constraint"):
        text = getattr(request, name)
        if text is not None:
            yield f"--{name}", text
