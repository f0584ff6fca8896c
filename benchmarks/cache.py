"""Caching: fill, second start, item access, memory, and data sets larger than memory; MONAI beside it in the same run.

Each part says in its module (`benchmarks/caches`) what is measured and how. The scans are phantoms of 100x512x512
voxels as .nii.gz, resampled to 2.5x1.5x1.5 mm as the spleen tutorial does with its own spacing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.caches import access, budget, fill, readers, start
from benchmarks.caches.outcome import Outcome
from benchmarks.data import QUICK_CT, phantoms
from benchmarks.harness import arguments, busy_machine, finish

SCAN = {"shape": (100, 512, 512), "spacing": (2.5, 0.8, 0.8)}
PARTS: dict[str, Callable[[Path, Path, int, bool], Outcome]] = {
    "fill": fill.measure, "start": start.measure, "access": access.measure, "readers": readers.measure,
    "budget": budget.measure,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        rounds={"type": int, "help": "rounds of every part; default 5, quick 2"},
        cases={"type": int, "help": "scans; default 41, quick 3"},
        parts={"nargs": "+", "choices": tuple(PARTS), "default": list(PARTS)},
        scans={"type": Path, "help": "Decathlon folder of scans to use instead of making them; made there if missing"},
    )  # fmt: skip
    rounds = given.rounds or (2 if given.quick else 5)
    others = busy_machine()
    total = Outcome()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = given.scans or folder / "scans"
        if not (data / "dataset.json").is_file():
            phantoms(data, given.cases or (3 if given.quick else 41), QUICK_CT if given.quick else SCAN)
        for name in given.parts:
            result = PARTS[name](data, folder, rounds, given.quick)
            total.results.update(result.results)
            total.claims.extend(result.claims)
            total.details[name] = result.details
            print(f"{name}: done", flush=True)
    settings: dict[str, Any] = {"about": __doc__, "rounds": rounds, "scans": SCAN, "parts": total.details}
    bench = "cache" if set(given.parts) == set(PARTS) else f"cache_{'_'.join(given.parts)}"
    finish(bench, total.claims, total.results, given.out, given.quick, settings=settings, others_before=others)


if __name__ == "__main__":
    main()
