"""Bad input and malicious files: what a stranger does wrong, and how `hasten` answers.

Each trial makes its bad input in a folder of its own, runs a verb of `hasten` on it, and is judged from outside, by
exit code, output and files:

- `handled`: refused with a non-zero exit code and one clear message, which names the file or field and says what to do;
  or accepted, where the input can be taken, with a warning if the user should know;
- `poor`: refused, but the message names no file or field, has no remedy, is longer than 12 lines or sends control
  characters to the terminal; or a sound input is refused;
- `traceback`; `silent`: exit code 0 and no word about what is wrong; `crash`: died of a signal; `hang`: over its time;
- `damage`: files of the user altered, records of two runs mixed or lost, code of a file run.

`benchmarks.trial.judge` has the rules. A trial says beforehand which of four answers a user wants (`Expect`).
Families: images, names (of files), voxels (values and geometry), labels, lists (of cases), settings, yaml, runs (files
of a run's folder), verbs. Servers, archives, damaged caches, kills and collisions have tests in `tests/`.

Exit code 1 for any traceback, silent, crash, hang or damage, or more than 1 % poor.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Claim, file_name, record_of
from benchmarks.trial.judge import FAILURES, VERDICTS
from benchmarks.trial.run import Trial, run_trials

PARTS = ("images", "voxels", "labels", "lists", "settings", "runs", "verbs")
MOST_POOR = 0.01


def main(argv: Sequence[str] | None = None) -> int:
    given = _arguments(argv)
    # Before NumPy is imported: a fork of a process that has threads would wait for locks that nobody gives back.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    trials = all_trials(given.only or PARTS, given.match)
    if given.list:
        print("\n".join(f"{trial.family}/{trial.name}" for trial in trials))
        return 0

    from benchmarks.trial.base import make_base, warm_up

    warm_up()
    folder = Path(tempfile.mkdtemp(prefix="hasten-trials-"))  # TemporaryDirectory would be removed by a fork that ends
    try:
        base = make_base(folder / "base")
        records = run_trials(trials, base, folder, given.jobs, lambda line: print(line, file=sys.stderr))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    claims = claims_of(records)
    print(table(records))
    print("\n".join(f"{claim.name}: {claim.value} (goal {claim.goal})" for claim in claims))
    if not (given.only or given.match) or given.out:
        _write(records, claims, given.out)
    return 0 if all(claim.holds for claim in claims) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, help="some parts; without --out nothing is written")
    parser.add_argument("--match", default="", help="only trials with this text in FAMILY/NAME")
    parser.add_argument("--out", type=Path, help="results file; default benchmarks/results/trials_MACHINE_DATE.json")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--list", action="store_true", help="print the names of the trials and stop")
    return parser.parse_args(argv)


def all_trials(parts: Sequence[str] = PARTS, match: str = "") -> list[Trial]:
    made = [trial for part in parts for trial in importlib.import_module(f"benchmarks.trial.{part}").trials()]
    return [trial for trial in made if match in f"{trial.family}/{trial.name}"]


def claims_of(records: Sequence[dict[str, Any]]) -> list[Claim]:
    count = Counter(record["verdict"] for record in records)
    total = len(records) - count["skipped"]
    failed = sum(count[verdict] for verdict in FAILURES)
    return [
        Claim.at_most(f"trials of {total} with a traceback, silence, crash, hang or damage", failed, 0),
        Claim.at_most(f"share of {total} trials that were handled poorly", count["poor"] / max(1, total), MOST_POOR),
    ]


def table(records: Sequence[dict[str, Any]]) -> str:
    """Counts by family and verdict, as text."""
    count = Counter((record["family"], record["verdict"]) for record in records)
    families = list(dict.fromkeys(record["family"] for record in records))
    rows = [["", *VERDICTS, "all"]]
    for family in families:
        line = [count[family, verdict] for verdict in VERDICTS]
        rows.append([family, *(str(number or "") for number in line), str(sum(line))])
    sums = [sum(count[family, verdict] for family in families) for verdict in VERDICTS]
    rows.append(["all", *map(str, sums), str(sum(sums))])
    return "\n".join(" ".join(f"{cell:>9}" for cell in row) for row in rows)


def _write(records: list[dict[str, Any]], claims: list[Claim], out: Path | None) -> None:
    # What a handled trial printed is of no further use, and is most of the file.
    kept = [
        {
            name: value
            for name, value in each.items()
            if each["verdict"] != "handled" or name in ("family", "name", "verdict")
        }
        for each in records
    ]
    settings = {"about": __doc__, "table": table(records), "trials": kept}
    record = record_of("trials", claims, {}, False, settings=settings)
    path = out or ROOT / "benchmarks" / "results" / file_name(record)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main())
