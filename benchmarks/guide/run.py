"""Measuring the claims within a time."""

from __future__ import annotations

import difflib
import time
import warnings
from collections.abc import Callable, Sequence

from benchmarks.guide.claim import LEAST_ROUNDS, Budget, Guidance, Outcome, Result, unmeasured
from benchmarks.guide.needs import device, missing
from benchmarks.guide.settings import settings_kept
from hasten.observe.cpu_load import LoadMeter

_ROUNDS_S = 4.0
"""Seconds of rounds that a claim gets where there is time for all of them."""
_FEWEST_ROUNDS_S = 3.0
"""Seconds of rounds that it gets at least if it is begun: enough for a clear gain of most of them."""


def chosen(claims: Sequence[Guidance], only: Sequence[str]) -> tuple[Guidance, ...]:
    """The claims of these names, in the guide's order; all of them for none.

    Raises ValueError for a name that there isn't, naming those near it.
    """
    names = [guidance.name for guidance in claims]
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            near += [one for one in names if one not in near and any(part in one for part in name.split("-") if part)]
            output = f"did you mean {', '.join(near[:4])}?" if near else f"there are {', '.join(names)}"
            raise ValueError(f"--only {name}: the guide has no such claim; {output}")
    return tuple(guidance for guidance in claims if not only or guidance.name in only)


def run_guide(
    claims: Sequence[Guidance],
    *,
    seconds: float,
    quick: bool = False,
    tell: Callable[[Guidance], object] = lambda guidance: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Result]:
    """Measure the claims one after another.

    seconds: for all of them together; each gets a share, by what it needs before its first round, and what one leaves
    goes to those after it, and in the end to those that others disturbed or that had too few rounds. Where the time is
    short for all, those that need little come first, so that most are answered. One for which too little is left is not
    measured. tell: called before each that is begun.
    """
    end = clock() + seconds
    results: dict[str, Result] = {}
    waiting = [guidance for guidance in claims if not missing(guidance.needs)]
    short = seconds < sum(map(_least, waiting))
    for guidance in sorted(claims, key=_least) if short else claims:
        begun = clock()
        if why := missing(guidance.needs):
            outcome = unmeasured(why)
        else:
            left = end - begun
            share = left * _least(guidance) / sum(map(_least, waiting))
            waiting.remove(guidance)
            fewest = guidance.setup_s + _FEWEST_ROUNDS_S
            if left < fewest:
                outcome = unmeasured(f"out of time: needs about {_least(guidance):.0f} s")
            else:
                tell(guidance)
                outcome = _measured(guidance, min(left, max(share, fewest)), quick=quick)
        results[guidance.name] = Result(guidance=guidance, outcome=outcome, seconds=clock() - begun)
    again = [guidance for guidance in claims if not quick and _disturbed(results[guidance.name].outcome)]
    for place, guidance in enumerate(again):
        begun = clock()
        if end - begun > _least(guidance):
            tell(guidance)
            share = max((end - begun) / (len(again) - place), _least(guidance))
            before = results[guidance.name]
            outcome = _measured(guidance, share, quick=False)
            if outcome.verdict == "not measured":
                outcome = before.outcome
            spent = before.seconds + clock() - begun
            results[guidance.name] = Result(guidance=guidance, outcome=outcome, seconds=spent)
    return [results[guidance.name] for guidance in claims]


def _disturbed(outcome: Outcome) -> bool:
    """Whether no verdict was drawn at all, so that measuring again is no second throw of the dice."""
    result = outcome.comparison
    if outcome.verdict != "can't tell" or result is None:
        return False
    return result.busy or len(result.seconds[result.base]) < LEAST_ROUNDS


def _least(guidance: Guidance) -> float:
    return guidance.setup_s + _ROUNDS_S


def _measured(guidance: Guidance, seconds: float, *, quick: bool) -> Outcome:
    meter = LoadMeter()
    try:
        with settings_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Such as that anomaly detection is slow, which is what is measured.
            return guidance.run(Budget(seconds=seconds, quick=quick, device=device()))
    except TimeoutError:
        return unmeasured(f"out of time: {seconds:.0f} s were too few; other programs used {meter.others():.1f} cores")
    except Exception as error:  # What one claim's library can't do on this machine must not cost the other claims.
        return unmeasured(f"failed: {type(error).__name__}: {str(error).strip() or 'no message'}")
