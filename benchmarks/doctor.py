"""The doctor: whether its verdict and findings name what is wrong in scripts, and what watching costs.

`corpus`: scripts like those that people publish, each with labels of what is wrong in it: verdicts, precision, recall.
`blind`: others, written and labelled by people who did not know the rules, and never looked at while rules are made.
`overhead`: what a run's monitor and trackers cost a step. `watchers`: the monitor's thread, and a range while no
profiler looks.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness import Claim, Part, arguments, interleave, part_arguments, run_parts


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        names={"nargs": "+", "help": "some of the corpus's scripts, by a part of their name"},
    )  # fmt: skip
    run_parts("doctor", PARTS, given, __doc__)


def corpus(given: argparse.Namespace, half: str = "s", goals: Sequence[float] = (0.95, 0.90, 0.85, 0.85)) -> Part:
    """goals: of verdicts, precision, recall on a CPU, recall on a GPU."""
    from benchmarks.doctor_corpus import judged_corpus, rates

    verdicts, precision, *recalls = goals
    result = judged_corpus(half, steps=24, seconds=20 if given.quick else 40, names=given.names)
    claims, kind = [], "blind " if half == "b" else ""
    number = f"{len(result) // 2} {kind}scripts"
    places: dict[str, float] = {}
    for hardware, recall in zip(("cpu", "gpu"), recalls, strict=True):
        rate = rates([one for one in result if one["hardware"] == hardware])
        for name, goal in (("verdicts", verdicts), ("precision", precision), ("recall", recall)):
            claims.append(Claim.at_least(f"{name} of {number}, for a {hardware}", rate[name], goal))
        places[hardware] = rate["at the label's line"]
        claims.append(Claim.at_most(f"named of {kind}controls, for a {hardware}", rate["named of controls"], 0))
    series = {f"{one['script']}_s": [one["seconds"]] for one in result if one["hardware"] == "cpu"}
    return claims, series, {"scripts": result, "at the label's line": places}


def overhead(given: argparse.Namespace) -> Part:
    times = observed_times(3 if given.quick else 15)
    # Round by round, as a slow spell of the machine lengthens all of a round.
    more = [ours / bare - 1 for ours, bare in zip(times["observed_ms"], times["bare_ms"], strict=True)]
    what = "share of a step that a run's monitor and trackers adds"
    return [Claim.at_most(what, statistics.median(more), 0.01)], times, {}


def watchers(given: argparse.Namespace) -> Part:
    figures = {**sampler_shares(1 if given.quick else 5), **range_times(3 if given.quick else 15)}
    share = statistics.median(figures["sampler_percent"])
    return [Claim.at_most("the monitor's thread, percent of a core", share, 0.1)], figures, {}


STEPS = 60
"""In a round."""


def observed_times(rounds: int) -> dict[str, list[float]]:
    """Mean ms of a small step, bare and as in a run: sampled each second, a line to the trackers every other step."""
    import torch
    from monai.networks.nets import UNet

    from hasten.observe.monitor import Monitor
    from hasten.observe.trackers import Tracking

    torch.manual_seed(0)
    net = UNet(3, 1, 3, channels=(16, 32, 64), strides=(2, 2), num_res_units=2, norm="instance")
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    image = torch.randn(2, 1, 32, 32, 32)

    def step() -> None:
        net(image).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def bare() -> float:
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        return 1e3 * (time.perf_counter() - begin) / STEPS

    def observed() -> float:
        done = 0
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            tracking = stack.enter_context(Tracking(("tensorboard",), folder, run_name="overhead", config={}))
            monitor = Monitor(folder, every=1.0, steps=lambda: done, tell=lambda _: None, send=tracking.log)
            stack.enter_context(monitor)
            begin = time.perf_counter()
            for done in range(STEPS):
                step()
                if done % 2:
                    tracking.log({"kind": "train", "step": done, "time_s": 0.0, "loss": 1.0, "lr": 1e-3})
            return 1e3 * (time.perf_counter() - begin) / STEPS

    return {f"{name}_ms": times for name, times in interleave({"bare": bare, "observed": observed}, rounds).items()}


def sampler_shares(rounds: int) -> dict[str, list[float]]:
    """Processor time of the monitor's thread, in percent of a core, over 20 s at one sample a second."""
    from hasten.observe.monitor import Monitor

    shares = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            with Monitor(Path(folder), every=1.0, tell=lambda _: None) as monitor:
                time.sleep(20)
            shares.append(100 * monitor.cpu_seconds / (time.perf_counter() - begin))
    return {"sampler_percent": shares}


def range_times(rounds: int) -> dict[str, list[float]]:
    """Nanoseconds that a range adds while no profiler looks: to a decorated function, and as a context."""
    from hasten.observe.ranges import Range

    def plain() -> None:
        pass

    def context() -> None:
        with Range("plain"):
            plain()

    arms = {"bare": plain, "decorated": Range("plain")(plain), "context": context}
    calls = 100_000
    timed = {name: lambda arm=arm: 1e9 * timeit.timeit(arm, number=calls) / calls for name, arm in arms.items()}
    times = interleave(timed, rounds)
    added = {name: [one - base for one, base in zip(times[name], times["bare"], strict=True)] for name in times}
    return {f"range_{name}_ns": added[name] for name in ("decorated", "context")}


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "corpus": corpus,
    "blind": partial(corpus, half="b", goals=(0.92, 0.92, 0.75, 0.92)),
    "overhead": overhead,
    "watchers": watchers,
}


if __name__ == "__main__":
    main()
