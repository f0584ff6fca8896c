"""The share of a script's time that its data take, without the doctor: `python -m benchmarks.doctors.ablation s03`.

The script runs as it is and with the first batch of each DataLoader given again and again, in turns. The share is what
a step gains by that. Labels `# verdict:` of scripts with a DataLoader rest on it: `input` from half of the time on.
"""

from __future__ import annotations

import json
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.doctors.corpus import SCRIPTS
from benchmarks.harness import ROOT

ROUNDS = 5
MOST_STEPS = 60
WARMUP = 0.25
"""Share of the steps that are not counted."""


def main(names: Sequence[str]) -> None:
    """Prints, of each script whose name begins so, milliseconds of a step either way, and the share."""
    for path in sorted(SCRIPTS.glob("s[0-9]*.py")):
        if not any(path.name.startswith(name) for name in names):
            continue
        plain, fixed = list[float](), list[float]()
        for _ in range(ROUNDS):
            plain.append(_step_ms(path, "plain"))
            fixed.append(_step_ms(path, "fixed"))
        share = 1 - statistics.median(fixed) / statistics.median(plain)
        print(json.dumps({"script": path.stem, "plain_ms": plain, "fixed_ms": fixed, "share": share}), flush=True)


def _step_ms(path: Path, how: str) -> float:
    words = [sys.executable, "-m", "benchmarks.doctors.ablation", "--in-child", str(path), how]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def _in_child(path: str, how: str) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    ends, real_iter, first = list[float](), DataLoader.__iter__, dict[int, Any]()

    def repeated(loader: Any) -> Iterator[Any]:
        if id(loader) not in first:
            first[id(loader)] = loader, next(real_iter(loader))
        for _ in range(len(loader)):
            yield first[id(loader)][1]

    if how == "fixed":
        DataLoader.__iter__ = repeated  # type: ignore[assignment,method-assign]

    def ended(*_: object) -> None:
        ends.append(time.perf_counter())
        if len(ends) == MOST_STEPS:
            raise SystemExit

    register_optimizer_step_post_hook(ended)
    sys.path.insert(0, str(SCRIPTS))
    sys.argv = [path]
    with suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    counted = ends[int(len(ends) * WARMUP) :]
    print(1000 * (counted[-1] - counted[0]) / (len(counted) - 1))


if __name__ == "__main__":
    if sys.argv[1] == "--in-child":
        _in_child(*sys.argv[2:])
    else:
        main(sys.argv[1:])
