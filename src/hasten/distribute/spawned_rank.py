"""`python -m hasten.distribute.spawned_rank TASK`: one rank of `spawn_ddp`, whose function is in the file TASK."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]

from hasten.files import replacing


def main() -> None:
    """Call the function; write RANK.result (None except for rank 0) or RANK.error next to TASK.

    An error is its time in ns, its traceback and, where it can be pickled, the exception in bytes.
    """
    task, rank = Path(sys.argv[1]), os.environ["RANK"]
    try:
        fn, args, kwargs = pickle.loads(task.read_bytes())
        result = fn(*args, **kwargs)
        _leave(task.with_name(f"{rank}.result"), cloudpickle.dumps(result if rank == "0" else None))
    except BaseException as error:
        failure = (time.time_ns(), "".join(traceback.format_exception(error)), _pickle(error))
        _leave(task.with_name(f"{rank}.error"), pickle.dumps(failure))
        raise SystemExit(1) from None


def _pickle(error: BaseException) -> bytes | None:
    with suppress(Exception):
        return bytes(cloudpickle.dumps(error))
    return None


def _leave(path: Path, content: bytes) -> None:
    with replacing(path, path.with_suffix(".part")) as file:
        file.write(content)


if __name__ == "__main__":
    main()
