"""Made-up samples, one a second unless told otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hasten.observe.monitor.recording import Gpu, Host, Sample, to_record

GPU = {"util": 95.0, "used": 8000.0, "total": 80000.0, "sm_mhz": 1900.0, "throttle": ()}
HOST = {"ram_used": 8000.0, "ram_total": 32000.0, "rss": 2000.0, "cpu": 80.0}


def series(
    seconds: int,
    *,
    gpu: Callable[[int], dict[str, Any]] | None = None,
    host: Callable[[int], dict[str, Any]] | None = None,
    num_gpus: int = 1,
    every: int = 1,
    step_s: float = 0.5,
    steps: bool = True,
    start: int = 0,
    process: int = 0,
) -> list[Sample]:
    """A sound run of one rank, changed at second t by what `gpu(t)` and `host(t)` return."""
    return [
        Sample(
            time=float(t),
            step=int((t - start) / step_s) if steps else None,
            step_s=step_s if steps and t > start else None,
            host=Host(**(HOST | (host(t) if host else {}))),
            gpus=tuple(Gpu(index=index, **(GPU | (gpu(t) if gpu else {}))) for index in range(num_gpus)),
            process=process,
        )
        for t in range(start, start + seconds, every)
    ]


def start(**fields: Any) -> dict[str, Any]:
    return {"kind": "start", "time": 0.0, "rank": 0, "world_size": 1, "every": 1.0} | fields


def write(path: Path, samples: Sequence[Sample], *, before: Sequence[Any] = (), after: Sequence[Any] = ()) -> Path:
    """monitor.jsonl of one process, with records before and after its samples."""
    records = [*before, *(to_record(sample) for sample in samples), *after]
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path
