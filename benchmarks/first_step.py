"""Seconds from the imports to the first training step: a process that `benchmarks.listing` starts.

A run on a few tiles comes first, so that all that training imports is there. OUT.json gets the seconds of the other.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path


def main(few: Path, data: Path, out: Path) -> None:
    train(few, out)
    begin = time.perf_counter()
    train(data, out)
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert first["step"] == 1
    (out.parent / f"{out.name}.json").write_text(
        json.dumps({"s": first["time_s"], "all_s": time.perf_counter() - begin})
    )


def train(data: Path, out: Path) -> None:
    """Two steps of a small network; two cases are validated."""
    from hasten.config.load import load_run
    from hasten.training.run import train as run

    shutil.rmtree(out, ignore_errors=True)
    ids = sorted(path.stem for path in (data / "images").iterdir())[-2:]
    settings = {
        "data.source": data, "data.split.by": "list", "data.split.validation": json.dumps(ids), "train.device": "cpu",
        "train.steps": 2, "train.validate_every": 2, "train.compile": "false", "network.channels": [4, 8],
        "network.strides": [[1, 2, 2]], "sample.patch": [1, 32, 32], "sample.batch_size": 4,
    }  # fmt: skip
    run(load_run(None, [f"{name}={value}" for name, value in settings.items()]), out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
