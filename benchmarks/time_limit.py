"""Whether `train.max_seconds` is kept, and what Dice a run reaches within it.

Each run is `hasten train DATA train.max_seconds=S` in a process of its own with an empty cache, timed from outside:
imports, preparation, measuring, training, validation and the report are inside. In the busy arms another process takes
one core meanwhile. The Dice is that of the run's own validation cases, by the plan's settings.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import phantoms
from benchmarks.harness import ROOT, Claim, arguments, busy_machine, finish

GRACE = 1.05
"""Of the time asked for, what a run may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    data: str
    seconds: int
    busy: bool

    @property
    def name(self) -> str:
        return f"{self.data} {self.seconds} s{' busy' if self.busy else ''}"


def main(argv: Sequence[str] | None = None) -> None:
    membrane = ROOT.parent / "shared" / "data" / "membrane"
    given = arguments(
        str(__doc__).splitlines()[0], argv, rounds={"type": int, "help": "default 5, quick 1"},
        membrane={"type": Path, "default": membrane if membrane.exists() else None, "help": "folder of 2-D EM images"},
    )  # fmt: skip
    others = busy_machine()
    rounds = given.rounds or (1 if given.quick else 5)
    results: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data = given.data or phantoms(Path(scratch) / "set", 16, {"shape": (40, 56, 40)})
        sources = {"hippocampus": data} | ({"membrane": given.membrane} if given.membrane is not None else {})
        limits = {"hippocampus": (30,)} if given.quick else {"hippocampus": (60,), "membrane": (120,)}
        arms = [
            Arm(data=name, seconds=seconds, busy=busy)
            for name in sources
            for seconds in limits.get(name, ())
            for busy in (False, True)
        ]
        for number in range(rounds):
            for arm in arms:
                figures = run(arm, sources[arm.data], Path(scratch) / f"{number}-{arm.name}".replace(" ", "-"))
                print(f"{number} {arm.name}: {figures}", file=sys.stderr)
                for name, value in figures.items():
                    results.setdefault(f"{arm.name}/{name}", []).append(value)
    claims = [
        Claim.at_most(f"{arm.name}: time taken over time asked, the most", max(results[f"{arm.name}/share"]), GRACE)
        for arm in arms
    ]
    finish("time_limit", claims, results, given.out, given.quick, settings={"about": __doc__}, others_before=others)


def run(arm: Arm, data: Path, scratch: Path) -> dict[str, float]:
    """Seconds, their share of the limit, Dice, steps, and the share of the schedule that was passed through."""
    environment = {**os.environ, "HASTEN_CACHE": str(scratch / "cache")}
    out = scratch / "run"
    command = [sys.executable, "-m", "hasten", "train", str(data), f"train.max_seconds={arm.seconds}", "--quiet"]
    with _hog() if arm.busy else contextlib.nullcontext():
        begin = time.perf_counter()
        code = subprocess.run([*command, "--out", str(out)], env=environment, stdout=subprocess.DEVNULL).returncode
        spent = time.perf_counter() - begin
    if code != 0:  # the start took all the time: the limit is kept, and nothing is trained
        return {"s": spent, "share": spent / arm.seconds, "dice": math.nan, "steps": 0.0, "schedule": 0.0}
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    planned = json.loads((out / "plan.json").read_text())["decisions"]["train.steps"]["value"]
    return {
        "s": spent,
        "share": spent / arm.seconds,
        "dice": summary["best"]["value"] if summary["best"]["value"] is not None else math.nan,
        "steps": float(summary["steps"]),
        "schedule": summary["position"] / planned,
    }


@contextlib.contextmanager
def _hog() -> Iterator[None]:
    """Another process that takes a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
