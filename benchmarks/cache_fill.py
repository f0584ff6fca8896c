"""Seconds to prepare a data set for the first epoch: MONAI's CacheDataset against Hasten's arena.

Every fill runs in a process of its own, with the files in the page cache; imports are recorded but not counted. The
arms take turns. MONAI caches what its fast training tutorial does (all cores as threads): prepared tensors and the
foreground and background indices that random crops are drawn from; `monai_plain` leaves the indices out.
Hasten stores as much: prepared cases and the foreground points, but writes them to its persistent cache.
`hasten_one_added` times a start whose cache lacks the last case only.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.data import CT, QUICK_CT, SMALL, phantoms
from benchmarks.harness import ROOT, Claim, arguments, busy_machine, finish, interleave, median_ratio
from hasten.observe.cores import usable_cores

ARMS = ("monai", "monai_plain", "hasten", "hasten_one_added")
CT_SPACING = (2.5, 1.5, 1.5)
GOAL = 2.0
ADDED_GOAL = 0.2
"""Of the seconds of a whole fill: of small cases, listing, opening and syncing to the disk are most of it. A case takes
one core however many there are, so that few cases tell nothing."""
MANY = 200


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        arms={"nargs": "+", "choices": ARMS, "default": list(ARMS)},
        rounds={"type": int, "help": "fills per arm; default 5, quick 2"},
        ct_cases={"type": int, "help": "CT phantoms; default 8, quick 2"},
        worker={"choices": ARMS, "help": "run one fill in this process and print it (used by the benchmark itself)"},
        kind={"choices": ("mr", "ct"), "default": "mr", "help": "with --worker"},
    )  # fmt: skip
    if given.worker:
        figures = fill(given.worker, given.data, given.kind)
        print(json.dumps(figures | {"peak_mib": peak_mib()}), flush=True)
        return
    rounds = given.rounds or (2 if given.quick else 5)
    before = busy_machine()
    results: dict[str, list[float]] = {}
    claims, sets = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, kind, data in data_sets(given, Path(scratch)):
            warm_page_cache(data)
            details: dict[str, list[dict[str, Any]]] = {arm: [] for arm in given.arms}
            arms = {arm: partial(in_child, arm, data, kind, details[arm]) for arm in given.arms}
            figures = interleave(arms, rounds, warmup=0 if given.quick else 1)
            results |= {f"{name}/{arm}_fill_s": values for arm, values in figures.items()}
            sets[name] = details
            ratio = median_ratio(figures.get("monai"), figures.get("hasten"))
            claims.append(Claim.at_least(f"{name}: MONAI's fill takes this many times Hasten's", ratio, GOAL))
            share = median_ratio(figures.get("hasten_one_added"), figures.get("hasten"))
            count = details["hasten"][-1]["cases"] if details.get("hasten") else 0
            if count >= MANY:
                claims.append(Claim.at_most(f"{name}: one of {count} cases added, of a whole fill", share, ADDED_GOAL))
    settings = {"rounds": rounds, "threads": usable_cores(), "ct_spacing": CT_SPACING, "fills": sets, "about": __doc__}
    finish("cache_fill", claims, results, given.out, given.quick, settings=settings, others_before=before)


def data_sets(given: Any, scratch: Path) -> list[tuple[str, str, Path]]:
    """(name, kind, Decathlon folder) of each set."""
    small = given.data or phantoms(scratch / "small", 8 if given.quick else 210, SMALL)
    large = phantoms(scratch / "ct", given.ct_cases or (2 if given.quick else 8), QUICK_CT if given.quick else CT)
    return [("hippocampus" if given.data else "small phantoms", "mr", small), ("ct phantoms", "ct", large)]


def warm_page_cache(data: Path) -> None:
    for path in data.rglob("*.nii*"):
        path.read_bytes()


def in_child(arm: str, data: Path, kind: str, log: list[dict[str, Any]]) -> float:
    command = [sys.executable, "-m", "benchmarks.cache_fill", "--worker", arm, "--kind", kind, "--data", str(data)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the fill `{arm}` of {data} failed:\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    log.append(figures)
    return figures["seconds"]


def fill(arm: str, data: Path, kind: str) -> dict[str, Any]:
    """One fill in this process: seconds, seconds of imports, cases and bytes stored."""
    spacing = CT_SPACING if kind == "ct" else None
    if arm.startswith("hasten"):
        from benchmarks.ours.fill import hasten_fill

        with tempfile.TemporaryDirectory() as cache:
            lacking = 1 if arm == "hasten_one_added" else None
            return hasten_fill(data, kind, spacing, Path(cache), lacking=lacking)
    return monai_fill(data, kind, spacing, indices=arm == "monai")


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def monai_fill(data: Path, kind: str, spacing: Sequence[float] | None, indices: bool) -> dict[str, Any]:
    start = time.perf_counter()
    from monai.data import CacheDataset
    from monai.transforms import Compose, EnsureTyped

    from benchmarks.ladder.chain import deterministic
    from benchmarks.tasks import bench_task, rows_of_all

    task = bench_task(data, kind, spacing=spacing)
    rows = rows_of_all(task)
    chain = Compose([*deterministic(task, indices=indices), EnsureTyped(["image", "label"], track_meta=False)])
    imported = time.perf_counter()
    cached = CacheDataset(rows, chain, num_workers=usable_cores(), copy_cache=False, progress=False)
    filled = time.perf_counter()
    stored = sum(value.nbytes for case in cached for value in case.values() if hasattr(value, "nbytes"))
    return {"seconds": filled - imported, "import_seconds": imported - start, "cases": len(cached), "bytes": stored}


if __name__ == "__main__":
    main()
