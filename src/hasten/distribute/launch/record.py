"""The record of the error that ended a rank, which the launcher reads, in torchrun's error file."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from torch import distributed

from hasten.distribute.consensus import OtherRankFailed
from hasten.distribute.group import RendezvousError
from hasten.observe.rundir import write_json

STOPPED = (130, 143, 75)
"""Exit codes of a run that was asked to stop and has saved its state."""
Kind = Literal["error", "memory", "mistake", "gone", "stopped", "other"]
_COLLECTIVE_ERRORS = ("gloo/transport", "closed by peer", "reset by peer", "nccl", "horovod has been shut down")
"""Lower-case substrings of the errors of failed collectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """How a rank ended.

    `mistake`: of the user; `gone`: it lost another rank; `stopped`: on request; `other`: another rank reports why.
    """

    kind: Kind
    exit_code: int
    message: str
    traceback: str
    time: float
    """Seconds since 1970."""


def record_of(error: BaseException, *, short_of_memory: Callable[[BaseException], bool]) -> RankRecord:
    """The record of an exception that ends a rank."""
    kind: Kind = "error"
    code = getattr(error, "exit_code", 1)
    message = str(error)
    if isinstance(error, OtherRankFailed):
        kind, code, message = "other", 2, ""
    elif isinstance(error, KeyboardInterrupt):
        kind, code = "stopped", getattr(error, "exit_code", 130)
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        kind = "stopped" if code in STOPPED else "mistake" if code == 2 else "error"
    elif _is_peer_failure(error):
        kind = "gone"
    elif isinstance(error, ValueError):
        kind, code = "mistake", 2
    elif short_of_memory(error):
        kind = "memory"
    return RankRecord(
        kind=kind,
        exit_code=code,
        message=message,
        traceback=_traceback(error),
        time=time.time(),
    )


@contextmanager
def recorded(*, short_of_memory: Callable[[BaseException], bool]) -> Iterator[None]:
    """Context manager for all work of a rank: record an exception that ends it for the launcher, and raise it again.

    Without a launcher that asks for it, nothing is written.
    """
    try:
        yield
    except BaseException as error:
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path and not (isinstance(error, SystemExit) and not error.code):
            record = record_of(error, short_of_memory=short_of_memory)
            # The format of torch's own `record`, which torchrun shows too, with Hasten's fields added.
            extra = {"py_callstack": record.traceback, "timestamp": str(int(record.time))}
            message = {"message": record.message, "extraInfo": extra}
            write_json(Path(path), {"message": message, "hasten": asdict(record)})
        raise


def read_record(path: Path) -> RankRecord | None:
    """The record that a rank wrote; None if there is none, or another program wrote the file."""
    try:
        return RankRecord(**json.loads(path.read_bytes())["hasten"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _traceback(error: BaseException) -> str:
    """The traceback without the frames of the command line, which are the same for all errors."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_frame_of_command(frames):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _is_frame_of_command(frames: TracebackType) -> bool:
    path = Path(frames.tb_frame.f_code.co_filename)
    return path == Path(__file__) or "typer" in path.parts or path.parts[-2:-1] == ("cli",)


def _is_peer_failure(error: BaseException) -> bool:
    """Whether a rank ended because of another, so that its own error is of no help."""
    if isinstance(error, RendezvousError | distributed.DistError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in _COLLECTIVE_ERRORS)
