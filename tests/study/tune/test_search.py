"""What a search takes, with made-up measurements."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.observe.compare import judge
from hasten.study.tune.search import ArmResult, Kind, Rules, Searched, SearchStage, Space, search
from hasten.study.tune.setting import Setting

START = Setting.of({"a": False, "b": False, "c": 0, "v": 1})
Seconds = Callable[[Setting], float]


def measured(base: float, arm: float, **others: Any) -> ArmResult:
    """As exact a measurement as there is."""
    gain, low, high, outcome = judge([base] * 8, [arm] * 8, 0.03)
    return ArmResult(outcome=outcome, gain=gain, low=low, high=high, seconds=arm, base_seconds=base, **others)


class Bench:
    """A machine on which a setting takes the seconds that a function says, and a clock that runs while it measures."""

    def __init__(
        self, seconds: Seconds, *, given: Mapping[Setting, ArmResult] | None = None, took: float = 1.0
    ) -> None:
        self.seconds, self.given, self.took, self.now = seconds, given or {}, took, 0.0
        self.asked: list[tuple[Kind, Setting, list[Setting]]] = []

    def __call__(self, kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> dict[Setting, ArmResult]:
        self.asked.append((kind, base, list(arms)))
        self.now += self.took * len(arms)
        return {arm: self.given.get(arm) or measured(self.seconds(base), self.seconds(arm)) for arm in arms}


def stage(name: str, *changes: dict[str, Any], **others: Any) -> SearchStage:
    return SearchStage(**{"name": name, "kind": "step", "changes": changes, **others})


A, B = stage("A", {"a": True}), stage("B", {"b": True})


def run(bench: Bench, *stages: SearchStage, seconds: float = 1000.0, **rules: Any) -> Searched:
    results = {"clock": lambda: bench.now, "cost": lambda kind, base, arms: bench.took * len(arms), **rules}
    return search(Space(start=START, stages=stages), bench, seconds=seconds, rules=Rules(**results))


def verdicts(result: Searched) -> list[str]:
    return [row.verdict for row in result.rows]


def times(setting: Setting, **factors: float) -> float:
    """Seconds of independent switches."""
    return math.prod(factor for name, factor in factors.items() if setting[name])


def test_gains_add_up_and_are_checked_together_against_the_start() -> None:
    bench = Bench(lambda setting: times(setting, a=0.5, b=0.8))
    result = run(bench, A, B)
    assert result.best == START.having({"a": True, "b": True})
    assert result.gain is not None
    assert result.gain.gain == pytest.approx(2.5)
    assert verdicts(result) == ["won", "won", "won"]
    assert bench.asked[-1] == ("run", START, [result.best])
    assert result.decided == {"a", "b"}


def test_one_gain_is_looked_at_again_in_the_run_unless_it_was_measured_there() -> None:
    bench = Bench(lambda setting: times(setting, a=0.5, b=2.0))
    result = run(bench, A, B)
    assert result.best == START.having({"a": True})
    assert [kind for kind, _, _ in bench.asked] == ["step", "step", "run"]
    assert verdicts(result) == ["won", "lost", "won"]
    bench = Bench(lambda setting: times(setting, a=0.5))
    assert run(bench, stage("A", {"a": True}, kind="run")).best == START.having({"a": True})
    assert len(bench.asked) == 1


def test_two_that_win_alone_and_lose_together_are_not_taken_together() -> None:
    def seconds(setting: Setting) -> float:
        return {(False, False): 4.0, (True, False): 2.0, (False, True): 3.0, (True, True): 5.0}[
            bool(setting["a"]), bool(setting["b"])
        ]

    result = run(Bench(seconds), A, B)
    assert result.best == START.having({"a": True})
    assert verdicts(result) == ["won", "lost", "won"]


def test_a_combination_that_is_no_better_than_the_start_is_dropped() -> None:
    """Each step seemed a gain, but all of it together, measured again, is none."""
    both = START.having({"a": True, "b": True})
    bench = Bench(lambda setting: times(setting, a=0.5, b=0.5))
    measure = bench.__call__

    def lying(kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> Mapping[Setting, ArmResult]:
        return {both: measured(1.0, 1.2)} if kind == "run" else measure(kind, base, arms, seconds)

    match = search(Space(start=START, stages=(A, B)), lying, seconds=100.0)
    assert match.best == START
    assert match.gain is None
    assert match.decided == frozenset()
    assert not any(row.taken for row in match.rows)
    assert [row.why for row in match.rows[:2]] == ["taken at first, and not in the end"] * 2


def test_where_the_whole_is_unclear_the_first_gain_stays() -> None:
    both = START.having({"a": True, "b": True})
    bench = Bench(lambda setting: times(setting, a=0.5, b=0.5))

    def unsure(kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> Mapping[Setting, ArmResult]:
        return {both: ArmResult(outcome="unclear")} if kind == "run" else bench(kind, base, arms, seconds)

    match = search(Space(start=START, stages=(A, B)), unsure, seconds=100.0)
    assert match.best == START.having({"a": True})
    assert match.gain is not None


@pytest.mark.parametrize("outcome", ["disagreed", "failed", "unclear"])
def test_speed_does_not_help_an_arm_that_is_wrong_or_doubtful(outcome: Any) -> None:
    arm = START.having({"a": True})
    bench = Bench(lambda setting: 1.0, given={arm: ArmResult(outcome=outcome, gain=9.0, low=8.0, high=10.0, why="so")})
    result = run(bench, A)
    assert result.best == START
    assert result.rows[0].verdict == outcome
    assert result.rows[0].why == "so"
    assert ("a" in result.decided) == (outcome != "unclear")


def test_a_busy_machine_does_not_end_the_search() -> None:
    arm = START.having({"a": True})
    busy = ArmResult(outcome="unclear", gain=3.0, low=2.5, high=3.5, why="other programs used 1.0 cores", busy=True)
    bench = Bench(lambda setting: times(setting, b=0.5), given={arm: busy})
    result = run(bench, A, B)
    assert result.busy
    assert result.best == START.having({"b": True})
    assert verdicts(result)[:2] == ["unclear", "won"]


def test_what_won_before_the_machine_got_busy_stays() -> None:
    both = START.having({"a": True, "b": True})
    busy = ArmResult(outcome="unclear", why="busy", busy=True)
    bench = Bench(lambda setting: times(setting, a=0.5), given={both: busy})
    result = run(bench, A, B, stage("C", {"c": 1}))
    assert result.best == START.having({"a": True})
    assert verdicts(result)[:2] == ["won", "unclear"]
    assert result.gain is not None


def test_no_time_at_all_gives_the_start_and_says_so() -> None:
    bench = Bench(lambda setting: times(setting, a=0.1))
    result = run(bench, A, B, seconds=0.0, cost=lambda kind, base, arms: math.inf)
    assert result.best == START
    assert result.short
    assert bench.asked == []
    assert verdicts(result) == ["not tried"] * 2
    assert "needs about inf s" in result.rows[0].why


def test_the_last_arms_of_a_stage_are_dropped_for_time() -> None:
    bench = Bench(lambda setting: 1.0, took=10.0)
    result = run(bench, stage("many", *({"c": count} for count in range(1, 6))), seconds=40.0)
    assert verdicts(result) == ["same", "same", "same", "not tried", "not tried"]
    assert result.short
    assert result.decided == frozenset()


def test_what_is_only_told_is_not_taken() -> None:
    result = run(Bench(lambda setting: times(setting, a=0.5)), stage("A", {"a": True}, takes=False))
    assert result.best == START
    assert verdicts(result) == ["won"]
    assert not result.rows[0].taken


def test_a_change_of_weight_needs_more_than_a_clear_gain() -> None:
    result = run(Bench(lambda setting: times(setting, a=0.9)), stage("A", {"a": True}, least=0.15))
    assert result.best == START
    assert verdicts(result) == ["won"]
    assert "15%" in result.rows[0].why


def test_what_does_not_pay_within_the_run_is_not_taken() -> None:
    result = run(Bench(lambda setting: times(setting, a=0.5)), A, pays=lambda base, arm, measured: "too dear")
    assert result.best == START
    assert result.rows[0].why == "too dear"


def test_a_stage_that_cannot_gain_is_not_measured() -> None:
    bench = Bench(lambda setting: times(setting, a=0.5))
    result = run(bench, A, ceiling=lambda stage, base: (1.01, "at best 1.01"))
    assert bench.asked == []
    assert result.rows[0].why == "at best 1.01"
    assert not result.short


def test_gains_in_validation_stay_where_those_in_training_are_dropped() -> None:
    both = START.having({"a": True, "b": True})
    validation = stage("V", {"v": 2}, kind="validate")
    bench = Bench(lambda setting: times(setting, a=0.5, b=0.5) / int(setting["v"]))

    def lying(kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> Mapping[Setting, ArmResult]:
        return {arms[0]: measured(1.0, 1.2)} if kind == "run" else bench(kind, base, arms, seconds)

    match = search(Space(start=START, stages=(A, B, validation)), lying, seconds=100.0)
    assert match.best == START.having({"v": 2}) != both
    assert match.gain is None


# The grid

GRID = stage("grid", {"a": True}, {"c": 1}, {"a": True, "c": 1}, beside=({"b": True},), reach=1.5)


def test_an_arm_that_is_behind_may_win_with_a_partner() -> None:
    eager = {(False, 0): 1.0, (True, 0): 0.7, (False, 1): 0.95, (True, 1): 0.9}

    def seconds(setting: Setting) -> float:
        pair = bool(setting["a"]), int(setting["c"])
        return (0.6 if pair == (False, 1) else 1.2 * eager[pair]) if setting["b"] else eager[pair]

    result = run(Bench(seconds), GRID)
    assert result.best == START.having({"b": True, "c": 1})


def test_what_could_not_catch_up_is_pruned_by_its_bound() -> None:
    bench = Bench(lambda setting: times(setting, a=0.5, b=0.9, c=1.0))
    result = run(bench, GRID)
    assert result.best == START.having({"a": True, "b": True})
    pruned = [row for row in result.rows if "so far behind" in row.why]
    assert {row.setting for row in pruned} == {START.having({"b": True}), START.having({"b": True, "c": 1})}
    assert not any(setting in arms for _, _, arms in bench.asked for setting in (row.setting for row in pruned))


def test_the_truly_losing_case_is_found() -> None:
    """Compiling gains everywhere but on top of the best pair, as an instance norm in bf16 and channels-last did."""
    eager = {(False, 0): 1.0, (True, 0): 0.75, (False, 1): 0.78, (True, 1): 0.60}
    compiled = {(False, 0): 0.80, (True, 0): 0.64, (False, 1): 0.65, (True, 1): 0.72}

    def seconds(setting: Setting) -> float:
        return (compiled if setting["b"] else eager)[bool(setting["a"]), int(setting["c"])]

    result = run(Bench(seconds), GRID)
    assert result.best == START.having({"a": True, "c": 1})
    assert {row.verdict for row in result.rows if row.setting["b"]} <= {"lost", "not tried"}


# Whatever the times

TABLES = st.dictionaries(
    st.tuples(st.booleans(), st.booleans(), st.integers(0, 1)), st.floats(0.1, 10.0), min_size=8, max_size=8
)


def table(result: Mapping[tuple[bool, bool, int], float]) -> Seconds:
    return lambda setting: result.get((bool(setting["a"]), bool(setting["b"]), int(setting["c"])), 1.0)


@given(TABLES, st.floats(0.0, 40.0))
def test_the_result_is_the_start_or_clearly_faster(speeds: dict[tuple[bool, bool, int], float], seconds: float) -> None:
    bench = Bench(table(speeds))
    result = run(bench, A, B, GRID, stage("C", {"c": 1}, {"c": 0}), seconds=seconds)
    assert result.best == START or bench.seconds(START) / bench.seconds(result.best) > 1.03
    for row in result.rows:
        if row.taken:
            assert row.measured is not None
            assert row.measured.outcome == "faster"
    assert result.gain is None or result.gain.outcome == "faster"


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8))
def test_the_best_clear_winner_of_a_stage_is_taken(arms: list[float]) -> None:
    bench = Bench(lambda setting: ([1.0, *arms])[int(setting["c"])])
    result = run(bench, stage("many", *({"c": number} for number in range(1, len(arms) + 1))))
    clear = [value for value in arms if 1 / value > 1.03]
    assert bench.seconds(result.best) == (min(clear) if clear else 1.0)


@given(st.integers(0, 10_000))
def test_pure_noise_changes_nothing(seed: int) -> None:
    """Every arm is the start itself, timed with a spread of a factor of three."""
    draw = random.Random(seed)

    def noisy(kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> Mapping[Setting, ArmResult]:
        match = {}
        for arm in arms:
            one, other = ([draw.uniform(1, 3) for _ in range(24)] for _ in range(2))
            gain, low, high, outcome = judge(one, other, 0.03)
            match[arm] = ArmResult(outcome=outcome, gain=gain, low=low, high=high)
        return match

    match = search(Space(start=START, stages=(A, B)), noisy, seconds=100.0)
    # An interval misses 5 times in 100; what then seems a gain is small, and taken only as far as it was measured.
    assert match.best == START or (match.gain is not None and (match.gain.low or 0.0) > 1.03)


@given(TABLES)
def test_a_machine_that_is_always_busy_gives_the_start(speeds: dict[tuple[bool, bool, int], float]) -> None:
    seconds = table(speeds)

    def busy(kind: Kind, base: Setting, arms: Sequence[Setting], given: float) -> Mapping[Setting, ArmResult]:
        return {
            arm: ArmResult(outcome="unclear", gain=seconds(base) / seconds(arm), busy=True, why="busy") for arm in arms
        }

    result = search(Space(start=START, stages=(GRID, A, B)), busy, seconds=100.0)
    assert (result.best, result.gain, result.decided) == (START, None, frozenset())
    assert result.busy


def test_every_arm_has_a_line() -> None:
    bench = Bench(lambda setting: times(setting, a=0.5, b=0.9))
    result = run(bench, GRID)
    tried = {row.setting for row in result.rows}
    assert tried >= {
        START.having({"a": one, "b": two, "c": three})
        for one, two, three in itertools.product((False, True), (False, True), (0, 1))
    } - {START}


def test_where_the_time_suffices_for_nothing_the_first_arm_is_looked_at_all_the_same() -> None:
    bench = Bench(lambda setting: 1.0, given={START.having({"a": True}): ArmResult(outcome="unclear", gain=1.2)})
    result = run(bench, A, B, seconds=10.0, cost=lambda kind, base, arms: 100.0 * len(arms))
    assert bench.asked == [("step", START, [START.having({"a": True})])]
    assert verdicts(result) == ["unclear", "not tried"]
    assert result.best == START
    assert result.short
    bench = Bench(lambda setting: 1.0)
    assert verdicts(run(bench, A, B, seconds=0.0, cost=lambda kind, base, arms: math.inf)) == ["not tried"] * 2
