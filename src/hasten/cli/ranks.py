"""A rank: `python -m hasten.cli.ranks` with the arguments of `hasten train`; what it reports, and how it ends."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from hasten.distribute.world import detect_world, end_with_launcher

_GRACE_SECONDS = 10.0
"""Longer than a launcher takes to end the other ranks once one has reported the error."""


def text_for_rank(error: Exception, text: str) -> str:
    """Return `text`, which describes the error; on ranks that need not report it, only after a delay.

    All ranks detect a mistake in the settings: rank 0 reports it, and the launcher then ends the others. A mistake that
    only another rank detects is reported too, but later.
    """
    world = detect_world()
    consensus = sys.modules.get("hasten.distribute.consensus")
    if world.first or (consensus is not None and isinstance(error, consensus.JobError)):
        return text
    time.sleep(_GRACE_SECONDS)
    return f"{text} ({world})"


def leave(code: str | int | None) -> None:
    """Exit a rank of several immediately; a single process exits as usual.

    When the interpreter takes gloo's threads down, torch 2.13 aborts now and then, and a finished job would
    count as failed.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or detect_world().size == 1:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def run(work: Callable[[], object]) -> NoReturn:
    """Do a rank's work and exit: with 0 also after a stop on request, whose code is recorded for the launcher.

    Otherwise a launcher would take a rank that has saved and exited for a failed one, and end those that still save.
    """
    end_with_launcher()
    # Both streams in the launcher's log, in the order of the output.
    os.dup2(1, 2)
    # It logs the exception that the launcher reports.
    logging.getLogger("ignite").setLevel(logging.CRITICAL)
    # Not before: to import torch takes a while.
    from hasten.distribute.launch.record import record_of, recorded
    from hasten.runtime.out_of_memory import out_of_memory

    code = 0
    try:
        with recorded(short_of_memory=out_of_memory):
            work()
    except BaseException as error:
        record = record_of(error, short_of_memory=out_of_memory)
        if record.kind == "stopped" and record.message and os.environ.get("RANK") == "0":
            print(record.message, file=sys.stderr, flush=True)
        if record.kind not in ("stopped", "other"):
            code = record.exit_code
    leave(code)
    sys.exit(code)


def _train(arguments: Sequence[str]) -> None:
    """Run `train` without the command line's guard, which would turn the error for the launcher into an exit code."""
    import typer

    from hasten.cli.terminal import guard_messages, mistake_text
    from hasten.cli.train import train

    guard_messages()
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(train)
    try:
        app(list(arguments), prog_name="hasten train", standalone_mode=False)
    except Exception as error:
        # A click exception; some versions of typer vendor click under another module name.
        of_click = getattr(error, "format_message", None)
        text = of_click() if of_click is not None else mistake_text(error) if isinstance(error, OSError) else None
        if text is None:
            raise
        raise ValueError(text) from error


if __name__ == "__main__":
    run(lambda: _train(sys.argv[1:]))
