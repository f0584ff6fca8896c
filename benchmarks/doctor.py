"""The doctor: whether its verdict and findings name what is wrong in scripts, and what watching costs.

`corpus`: scripts like those that people publish, each with labels of what is wrong in it: verdicts, precision, recall.
`overhead`: what a run's monitor and trackers, and the probe in somebody's script, cost a step. `watchers`: the
monitor's thread, and a range while no profiler looks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

from benchmarks.harness import Claim, Part, arguments, part_arguments, run_parts


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        parts=part_arguments(PARTS),
        names={"nargs": "+", "help": "some of the corpus's scripts, by a part of their name"},
    )  # fmt: skip
    run_parts("doctor", PARTS, given, __doc__)


def corpus(given: argparse.Namespace) -> Part:
    from benchmarks.doctors.corpus import judged_corpus, rates

    result = judged_corpus(steps=24, seconds=20 if given.quick else 40, names=given.names)
    claims = []
    for hardware in ("cpu", "gpu"):
        rate = rates([one for one in result if one["hardware"] == hardware])
        for name, goal in (("verdicts", 0.95), ("precision", 0.90), ("recall", 0.85)):
            claims.append(Claim.at_least(f"{name} of {len(result) // 2} scripts, for a {hardware}", rate[name], goal))
        claims.append(Claim.at_most(f"named of controls, for a {hardware}", rate["named of controls"], 0))
    series = {f"{one['script']}_s": [one["seconds"]] for one in result if one["hardware"] == "cpu"}
    return claims, series, {"scripts": result}


def overhead(given: argparse.Namespace) -> Part:
    from benchmarks.doctors.overhead import observed_times, probe_times

    rounds = 3 if given.quick else 15
    times = {**observed_times(rounds), **probe_times(2 if given.quick else 6)}
    claims = []
    for without, with_, what, goal in (
        ("bare_ms", "observed_ms", "a run's monitor and trackers", 0.01),
        ("unwatched_ms", "watched_ms", "the probe in a script", 0.01),
    ):
        if with_ in times:
            # Round by round, as a slow spell of the machine lengthens all of a round.
            more = [ours / bare - 1 for ours, bare in zip(times[with_], times[without], strict=True)]
            claims.append(Claim.at_most(f"share of a step that {what} adds", statistics.median(more), goal))
    return claims, times, {}


def watchers(given: argparse.Namespace) -> Part:
    from benchmarks.doctors.overhead import range_times, sampler_shares

    figures = {**sampler_shares(1 if given.quick else 5), **range_times(3 if given.quick else 15)}
    share = statistics.median(figures["sampler_percent"])
    return [Claim.at_most("the monitor's thread, percent of a core", share, 0.1)], figures, {}


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "corpus": corpus, "overhead": overhead, "watchers": watchers,
}  # fmt: skip


if __name__ == "__main__":
    main()
