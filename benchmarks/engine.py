"""The engine: a step against plain PyTorch, optimizers, recipes on the hippocampus, sliding window, memory.

`--parts` runs some of it. What takes long is `ablation`: every recipe is trained from an empty cache in a process of
its own, three seeds each, in turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.harness import Claim, Part, arguments, median_ratio, part_arguments, run_parts


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        rounds={"type": int, "help": "steps, or windows' volumes, per arm; default 15, quick 2"},
        seeds={"type": int, "help": "ablation: runs per arm; default 3, quick 1"},
        precisions={"nargs": "+", "choices": ("fp32", "bf16"), "default": ["fp32", "bf16"], "help": "sliding window"},
        arms={"nargs": "+", "help": "ablation: some of its arms"},
        work={"type": Path, "help": "ablation: keep the result of every run here, and reuse what is there"},
    )  # fmt: skip
    given.rounds = given.rounds or (2 if given.quick else 15)
    run_parts("engine", PARTS, given, __doc__)


def steps(given: argparse.Namespace) -> Part:
    from benchmarks.engines.steps import NETS, step_times

    times, message = step_times(given.rounds, compiled=not given.quick)
    claims = []
    for net in NETS:
        ratio = median_ratio(times[f"{net}/plain_ms"], times[f"{net}/hasten_ms"])
        claims.append(Claim.at_least(f"{net}: a plain float32 step takes this many times Hasten's", ratio, 1.0))
    return claims, times, message


def optimizers(given: argparse.Namespace) -> Part:
    from benchmarks.engines.optimizers import optimizer_times, ratios

    times = optimizer_times(given.rounds)
    claims = [Claim.at_least(f"one step of {pair}", value, 2.0) for pair, value in ratios(times).items()]
    return claims, {f"{arm}_ms": values for arm, values in times.items()}, {}


def sliding(given: argparse.Namespace) -> Part:
    from benchmarks.engines.sliding import sliding_memory, sliding_times

    times = sliding_times(1 if given.quick else 5, given.quick, given.precisions)
    memory = sliding_memory(given.quick, given.precisions)
    claims = []
    for precision in given.precisions:
        theirs, ours = (f"{arm}_labels_{precision}_0.25" for arm in ("monai", "surgery"))
        faster = median_ratio(times[f"{theirs}_s"], times[f"{ours}_s"])
        claims.append(Claim.at_least(f"300x300x200, {precision}: MONAI takes this many times as long", faster, 2.0))
        share = median_ratio(memory[f"{ours}_mib"], memory[f"{theirs}_mib"])
        assert share is not None
        claims.append(
            Claim.at_most(f"300x300x200, 14 classes, {precision}: share of MONAI's peak memory", share, 1 / 3)
        )
    return claims, {**times, **memory}, {}


def memory(given: argparse.Namespace) -> Part:
    from benchmarks.engines.memory import memory_curves

    return memory_curves(given.quick)


def ablation(given: argparse.Namespace) -> Part:
    from benchmarks.engines.ablation import ABOUT, ARMS, table
    from benchmarks.engines.ablation import ablation as run

    if given.data is None:
        print("no hippocampus data: give its folder with --data; the ablation is left out", file=sys.stderr)
        return [], {}, {}
    arms = list(given.arms or (list(ARMS)[:1] if given.quick else ARMS))
    with nullcontext(str(given.work)) if given.work else tempfile.TemporaryDirectory() as work:
        Path(work).mkdir(parents=True, exist_ok=True)
        result = run(given.data, given.seeds or (1 if given.quick else 3), Path(work), arms)
    return [], table(result), {"about": ABOUT, "runs": result}


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "steps": steps, "optimizers": optimizers,
    "sliding": sliding, "memory": memory, "ablation": ablation,
}  # fmt: skip


if __name__ == "__main__":
    main()
