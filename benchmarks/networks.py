"""Networks in a run: what the step costs beside a bare loop, what each switch gains, and what fine-tuning saves.

`steps`: every built-in network and one of MONAI's by its module's name, on the hippocampus or phantoms of it; the arms
take turns. `tuning`: runs that start from weights against runs from random weights, compared by steps, which no load
of the machine changes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data import phantoms
from benchmarks.harness import Claim, Part, arguments, part_arguments, run_parts


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        rounds={"type": int, "help": "steps of each arm; default 25, quick 2"},
        networks={"nargs": "+", "help": "steps: some of the networks; default all"},
        seeds={"type": int, "help": "runs of each arm of tuning; default 3, quick 1"},
        membrane={"type": Path, "help": "folder of the membrane data; without it that task is left out"},
        work={"type": Path, "help": "tuning: keep the runs here, and reuse those that are there"},
    )  # fmt: skip
    run_parts("networks", PARTS, given, __doc__)


def steps(given: argparse.Namespace) -> Part:
    from benchmarks.nets.steps import OVERHEAD, networks, step_times

    with tempfile.TemporaryDirectory() as scratch:
        data = given.data or phantoms(Path(scratch) / "set", 5, {"shape": (40, 56, 40)})
        names = given.networks or (networks()[:1] if given.quick else networks())
        results, about = step_times(data, names, given.rounds or (2 if given.quick else 25), Path(scratch))
    claims = [
        Claim.at_most(
            f"{name}: a run's step over a bare loop with the same switches, median of the rounds",
            statistics.median(results[f"{name}/overhead"]), OVERHEAD,
        )
        for name in names
    ]  # fmt: skip
    return claims, results, about


def tuning(given: argparse.Namespace) -> Part:
    from benchmarks.nets.tuning import hippocampus, membrane, tuned

    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        data = given.data or phantoms(Path(scratch) / "set", 12, {"shape": (40, 56, 40)})
        tasks = [hippocampus(data, quick=given.quick)]
        if given.membrane is not None:
            tasks.append(membrane(given.membrane, work, quick=given.quick))
        claims, results, about = [], dict[str, list[float]](), {}
        for task in tasks:
            result = tuned(task, given.seeds or (1 if given.quick else 3), work)
            results |= {f"{task.name}/{arm}": values for arm, values in result.items()}
            about[task.name] = task.about
            # A run from random weights that does not get there counts with the steps that it had: the ratio is larger.
            least = statistics.median(result["random, steps"]) / statistics.median(result["tuned, steps"])
            what = f"{task.name}: steps to {task.target} from random weights over those from a run"
            claims.append(Claim.at_least(what, least if all(result["tuned, reached"]) else None, 1.5))
    return claims, results, about


PARTS = {"steps": steps, "tuning": tuning}

if __name__ == "__main__":
    main()
