"""`hasten tune`: a search on the hippocampus run, and compiling where it is said to lose.

`losing`: a small U-Net with instance norm in each precision and memory format: compiled against eager. Compiled bf16
with channels-last was once slower than eager on a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import Claim, Part, arguments, part_arguments, run_parts


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        seconds={"type": float, "help": "for the search; default 400, quick 30"},
    )  # fmt: skip
    given.seconds = given.seconds or (30.0 if given.quick else 400.0)
    if given.data is None:
        print("no hippocampus data: give its folder with --data", file=sys.stderr)
        return
    run_parts("tune", PARTS, given, __doc__)


def search(given: argparse.Namespace) -> Part:
    """A search in an empty cache."""
    from hasten.config.load import load_run
    from hasten.doctor.tune import tune

    with tempfile.TemporaryDirectory() as folder:
        config = load_run(None, [f"data.source={given.data}", f"cache.dir={folder}/cache"])
        out = Path(folder, "tuned")
        result = tune(config, out, seconds=given.seconds, echo=lambda text: print(text, file=sys.stderr))
        content = json.loads((out / "tune.json").read_text())
    claim = Claim.at_most("seconds of the search over those it was given", result.seconds / given.seconds, 1.5)
    return [claim], {"search_s": [result.seconds]}, content


def losing(given: argparse.Namespace) -> Part:
    from hasten.config.load import load_run
    from hasten.doctor.training import keep_freed_memory, plan_run
    from hasten.doctor.tune.arms import Arms
    from hasten.doctor.tune.run import start_of

    shape = ["sample.patch=[48,48,48]", "sample.batch_size=4", "network.channels=[16,32,64]"]
    shape += ["network.strides=[[2,2,2],[2,2,2]]", "network.norm=instance"]
    rows, series = [], {}
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(load_run(None, [f"data.source={given.data}", f"cache.dir={folder}", *shape]))
        keep_freed_memory()
        start = start_of(planned)
        arms = Arms(planned, start)
        pairs = [("bf16", True)] if given.quick else [("bf16", True), ("bf16", False), ("fp32", True), ("fp32", False)]
        for precision, last in pairs:
            base = start.having({"train.precision": precision, "train.channels_last": last})
            arm = base.having({"train.compile": True})
            one = arms.measure("train", base, [arm], 60.0)[arm]
            name = f"{precision}{' channels-last' if last else ''}"
            rows.append({"case": name, "outcome": one.outcome, "gain": one.gain, "low": one.low, "high": one.high,
                         "why": one.why, "agreement": one.agreement, "compile_s": one.once})  # fmt: skip
            print(rows[-1], file=sys.stderr)
            if one.seconds is not None and one.base_seconds is not None:
                series[f"{name}/eager_ms"] = [1e3 * one.base_seconds]
                series[f"{name}/compiled_ms"] = [1e3 * one.seconds]
    output = sum(row["outcome"] in ("faster", "slower", "same") for row in rows) / len(rows)
    return [Claim.at_least("share of the cases with a verdict", output, 1.0)], series, {"rows": rows}


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {"search": search, "losing": losing}


if __name__ == "__main__":
    main()
