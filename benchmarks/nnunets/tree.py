"""A child process with the memory that it and its own children take at the peak."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import ROOT, commit

_PAUSE = 0.2


def in_child(what: str, job: Mapping[str, Any], *, nnunet: Path, work: Path, number: int = 0) -> dict[str, Any]:
    """What `benchmarks.nnunets.child` prints last, and `mib` of the whole process tree: shared pages count once.

    It is kept in `work` beside the commit, and not measured again. number: of the repetition. nnunet: folder that
    nnU-Net is installed in. Raises RuntimeError with the end of what the child wrote.
    """
    key = json.dumps([what, number, commit(), dict(job)], sort_keys=True)
    kept = work / "turns" / f"{what}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if kept.exists():
        earlier: dict[str, Any] = json.loads(kept.read_text())
        return earlier
    result = _measured(what, job, nnunet, work)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result))
    return result


def _measured(what: str, job: Mapping[str, Any], nnunet: Path, work: Path) -> dict[str, Any]:
    folders = {name: str(work / name) for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")}
    paths = [str(ROOT / "src"), str(nnunet), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, **folders, "nnUNet_compile": "f" if job["device"] == "cpu" else "t",
        "nnUNet_n_proc_DA": str(0 if job.get("fixed") else job["workers"]), "nnUNet_def_n_proc": str(job["workers"]),
        "OMP_NUM_THREADS": str(job["threads"]), "HASTEN_SEED": str(job.get("seed", 0)),
        "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip
    with tempfile.TemporaryFile("w+") as out:
        words = [sys.executable, "-m", "benchmarks.nnunets.child", what, json.dumps({**job, "began": time.time()})]
        child = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        peak = 0
        while child.poll() is None:
            peak = max(peak, _held(child.pid))
            time.sleep(_PAUSE)
        out.seek(0)
        lines = out.read().splitlines()
    if child.returncode != 0:
        raise RuntimeError(f"{what} of {job['dataset']} failed:\n" + "\n".join(lines[-30:]))
    return {**json.loads(next(line for line in reversed(lines) if line.startswith("{"))), "mib": peak / 2**20}


def _held(pid: int) -> int:
    """Bytes, each shared page divided among those that hold it."""
    total = 0
    try:
        top = psutil.Process(pid)
        for each in (top, *top.children(recursive=True)):
            total += each.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
        pass  # it ended just now
    return total
