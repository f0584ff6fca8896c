"""Training on several processes: what the wrapper costs, recovery, efficiency, and what is predicted.

`python -m benchmarks.scale [--parts overhead recovery efficiency prediction]`. `prediction` needs the logs of
a scaling study (`--logs`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import ROOT, Claim, Part, arguments, part_arguments, run_parts


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        rounds={"type": int, "help": "steps of each arm, kills, runs; default 60, 5 and 5, quick 2"},
        logs={"type": Path, "default": ROOT.parent / "shared" / "data" / "unet_scaling_logs",
              "help": "logs of a scaling study, for prediction"},
    )  # fmt: skip
    run_parts("scale", PARTS, given, __doc__)


def overhead(given: argparse.Namespace) -> Part:
    from benchmarks.scales.overhead import step_times

    times = step_times(given.rounds or (2 if given.quick else 60))
    claims = []
    for arm, message in (("hasten", "the wrapper"), ("synced", "the wrapper and the loss of the whole batch")):
        ratio = statistics.median(ours / bare for ours, bare in zip(times[arm], times["bare"], strict=True))
        claims.append(Claim.at_most(f"a step of two ranks with {message}, over bare DDP", ratio, 1.01))
    return claims, times, {"ratio": "median over the rounds of Hasten's step over the bare one of the same round"}


def recovery(given: argparse.Namespace) -> Part:
    from benchmarks.scales.recovery import recovery as measured

    result = measured(given.rounds or (2 if given.quick else 5))
    return [], {"recovery_s": result["seconds"]}, result


def efficiency(given: argparse.Namespace) -> Part:
    from benchmarks.scales.efficiency import efficiency as measured

    rounds = given.rounds or (2 if given.quick else 5)
    with tempfile.TemporaryDirectory() as folder:
        result = measured(Path(folder), given.data, rounds=rounds, tell=lambda line: print(line, file=sys.stderr))
    arms = result.pop("arms")
    return [], {f"{arm}/{name}": values for arm, series in arms.items() for name, values in series.items()}, result


def prediction(given: argparse.Namespace) -> Part:
    from benchmarks.scales.prediction import lines, validations

    result = validations(given.logs)
    print("\n".join(lines(result)), file=sys.stderr)
    claims = []
    for strategy, rows in result["logs"].items():
        (miss,) = [row["miss"] for row in rows["rows"] if row["workers"] == 14]
        claims.append(Claim.at_most(f"{strategy}: miss of 14 GPUs, predicted from 1, 2 and 4", abs(miss), 0.1))
    return claims, {}, result


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "overhead": overhead,
    "recovery": recovery,
    "efficiency": efficiency,
    "prediction": prediction,
}

if __name__ == "__main__":
    main()
