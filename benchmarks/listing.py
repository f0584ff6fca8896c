"""Seconds and memory that a data set of very many small images costs at the start, and how they grow with it.

Tiles of 32 x 32 pixels with label maps, hard links to a few files, in images/ and labels/. `hasten plan` is timed from
outside, with an empty cache and again; the first training step from its own process, after the imports, when the cache
is filled. Memory is the peak of the whole process. `--sizes 20000 200000 1000000` takes an hour; half of it with
`--cold-rounds 1`, which times the start with an empty cache, on which there is no goal, once only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness import ROOT, Claim, arguments, busy_machine, finish

SIZES = (2_000, 20_000, 200_000)
GOAL = 20_000
"""The size that the goals are for."""
STEP_S, PLAN_S = 2.0, 4.0
BEND = 1.25
"""Most that a tile among many may cost over one among few, for a line that counts as straight."""
DISTINCT = 64
LINKS = 20_000
"""Of one file, at most: ext4 allows 65 000."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv, rounds={"type": int, "help": "default 5, quick 1"},
        cold_rounds={"type": int, "help": "starts with an empty cache; default as many as rounds"},
        sizes={"type": int, "nargs": "+", "default": list(SIZES), "help": "numbers of tiles, rising"},
    )  # fmt: skip
    others = busy_machine()
    rounds = given.rounds or (1 if given.quick else 5)
    sizes = [20, 40, 60] if given.quick else given.sizes
    results: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in sizes:
            for name, values in measured(size, rounds, given.cold_rounds or rounds, Path(scratch) / str(size)).items():
                results[f"{size}/{name}"] = values
                print(f"{size} {name}: {values}", file=sys.stderr)
    finish(
        "listing", claims_of(results, sizes), results, given.out, given.quick,
        settings={"about": __doc__, "sizes": sizes}, others_before=others,
    )  # fmt: skip


def measured(size: int, rounds: int, cold_rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds and MiB of each start, by name."""
    results: dict[str, list[float]] = {}
    data = write_tiles(folder / "set", size)
    few = write_tiles(folder / "few", 8)
    plan = ["-m", "hasten", "plan", str(data), "--overwrite", "--out", str(folder / "plan.json")]
    for number in range(rounds):
        if number < cold_rounds:
            cache = folder / f"cache{number}"
            _note(results, "plan_first", *run(plan, cache))
        _note(results, "plan_second", *run(plan, cache))
    step = [str(each) for each in (few, data, folder / "run")]
    run(["-m", "benchmarks.first_step", *step], cache)  # fills the cache
    for _ in range(rounds):
        _, mib = run(["-m", "benchmarks.first_step", *step], cache)
        _note(results, "step", json.loads((folder / "run.json").read_text())["s"], mib)
    return results


def _note(result: dict[str, list[float]], name: str, seconds: float, mib: float) -> None:
    result.setdefault(f"{name}_s", []).append(seconds)
    result.setdefault(f"{name}_mib", []).append(mib)


def write_tiles(folder: Path, count: int) -> Path:
    """A data set of `count` tiles whose classes are declared."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    (folder / "labels.json").write_text('{"0": "background", "1": "square"}')
    distinct = max(min(count, DISTINCT), -(-count // LINKS))
    for number in range(count):
        pair = [folder / name / f"tile_{number:07d}.png" for name in ("images", "labels")]
        if number < distinct:
            label = np.zeros((32, 32), np.uint8)
            top, left = rng.integers(4, 20, 2)
            label[top : top + 8, left : left + 8] = 1
            image = rng.integers(0, 60, (32, 32)) + 100 * label
            for path, array in zip(pair, (image.astype(np.uint8), label), strict=True):
                Image.fromarray(array).save(path)
        else:
            for path in pair:
                path.hardlink_to(path.with_name(f"tile_{number % distinct:07d}.png"))
    return folder


def run(arguments: Sequence[str], cache: Path) -> tuple[float, float]:
    """Seconds and peak MiB of a Python process. Raises CalledProcessError."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "HASTEN_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return seconds, usage.ru_maxrss / 1024


def claims_of(results: dict[str, list[float]], sizes: Sequence[int]) -> list[Claim]:
    """The goals, and for each series how straight its line is."""
    step, plan = (results.get(f"{GOAL}/{name}") for name in ("step_s", "plan_second_s"))
    claims = [
        Claim.at_most(
            "s from the imports to the first step, second start, 20 000 tiles", step and median(step), STEP_S
        ),
        Claim.at_most("s of `hasten plan`, second start, 20 000 tiles", plan and median(plan), PLAN_S),
    ]
    for name in ("plan_second_s", "plan_second_mib", "step_s", "step_mib"):
        line = [median(results[f"{size}/{name}"]) for size in sizes]
        claims.append(
            Claim.at_most(f"{name}: a tile's cost among the most over that among the fewest", bend(sizes, line), BEND)
        )
    return claims


def bend(sizes: Sequence[int], line: Sequence[float]) -> float | None:
    """Slope of the last part of a line over that of its first; None where the first does not rise."""
    slopes = np.diff(line) / np.diff(sizes)
    return float(slopes[-1] / slopes[0]) if slopes[0] > 0 else None


if __name__ == "__main__":
    main()
