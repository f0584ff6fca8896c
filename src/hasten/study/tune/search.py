"""The search: which arms are compared with what, which are taken, and which there is no time for.

Coordinate descent, one stage after another, each against the best setting so far. Knobs that interact form one stage.
Nothing here runs a network: `measure` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hasten.study.tune.setting import Changes, Setting, Value, changes_text, unique

Kind = Literal["step", "run", "validate", "update"]
"""What is timed: a step on one ready batch, steps with their batches, a validation, the optimizer's update alone."""
Outcome = Literal["faster", "slower", "same", "unclear", "disagreed", "failed"]
Verdict = Literal["won", "lost", "same", "unclear", "disagreed", "failed", "not tried"]

TRAINS: tuple[Kind, ...] = ("step", "run")
"""Kinds whose gains speed up training; they are confirmed together at the end."""
BEATEN, GIVEN_UP = "another one gained more", "taken at first, and not in the end"
"""Remarks on arms that won but are not taken."""
_RESERVE = 0.12
"""Share of the time that is reserved for comparing the result with the start."""
_LEAST_CEILING = 1.03
"""A stage whose ceiling is below this can't gain."""
_VERDICTS: dict[Outcome, Verdict] = {"faster": "won", "slower": "lost"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmResult:
    """The result of one arm against the base of its comparison."""

    outcome: Outcome
    gain: float | None = None
    """Base time / arm time; None if it was not timed."""
    low: float | None = None
    high: float | None = None
    seconds: float | None = None
    """Median of the arm, for the work of one base step (or validation, or update)."""
    base_seconds: float | None = None
    agreement: str = ""
    """How far its loss and gradient norm are from the base's, in words."""
    why: str = ""
    busy: bool = False
    """Whether other programs took too much of the machine meanwhile."""
    once: float = 0.0
    """Seconds that a run pays once for it, such as compiling."""


Measure = Callable[[Kind, Setting, Sequence[Setting], float], Mapping[Setting, ArmResult]]
"""Compares arms with the base, interleaved, within about that many seconds: all, or as many as that allows."""
Cost = Callable[[Kind, Setting, Sequence[Setting]], float]
"""Least seconds for comparing arms with the base."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchStage:
    """Some arms that are compared with the best setting so far."""

    name: str
    kind: Kind
    changes: tuple[Changes, ...]
    """Each makes an arm of the best setting so far."""
    beside: tuple[Changes, ...] = ()
    """Each is then tried on top of the best of those arms, and of all arms that it might make the best."""
    reach: float = 1.5
    """Assumed largest gain of a change of `beside`: limits the arms that it is tried on."""
    takes: bool = True
    """Whether what wins is taken; else it is only reported."""
    least: float = 0.0
    """Share that an arm must gain, beyond noise, at the lower end of its interval to be taken."""
    weight: float = 1.0
    """Weight of the stage, against those of later stages, in dividing the remaining time."""


Ceiling = Callable[[SearchStage, Setting], tuple[float, str] | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    start: Setting
    stages: tuple[SearchStage, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRow:
    """One line of the table of everything tried."""

    stage: str
    kind: Kind
    base: Setting
    setting: Setting
    verdict: Verdict
    measured: ArmResult | None = None
    taken: bool = False
    superseded: bool = False
    """Whether it won, and something else is taken in its place."""
    why: str = ""

    @property
    def changes(self) -> dict[str, Value]:
        return self.setting.apart(self.base)


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    start: Setting
    best: Setting
    """`start` itself unless something was clearly faster."""
    rows: tuple[SearchRow, ...]
    decided: frozenset[str]
    """Knobs for which the measurements were conclusive, changed or not."""
    gain: ArmResult | None
    """Gain of `best` against `start`, in steps; None where they are the same, or only validation gained."""
    busy: bool
    short: bool
    """Whether there was too little time for everything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What bounds a search besides its measurements."""

    cost: Cost = lambda kind, base, arms: 0.0
    ceiling: Ceiling = lambda stage, base: None
    """The largest possible gain of a stage, if known, and why: a stage that can't gain is not measured."""
    pays: Callable[[Setting, Setting, ArmResult], str | None] = lambda base, arm, measured: None
    """The reason against taking an arm that won, such as its one-time cost; None if there is none."""
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str], object] = lambda text: None


def search(space: Space, measure: Measure, *, seconds: float, rules: Rules | None = None) -> Searched:
    """Run the stages within about `seconds`; only arms that are clearly faster and agree are taken."""
    run = _Search(space, measure, rules or Rules(), seconds)
    for number, stage in enumerate(space.stages):
        run.stage(stage, sum(later.weight for later in space.stages[number + 1 :]))
    return run.result()


@dataclass(slots=True)
class _Search:
    space: Space
    measure: Measure
    rules: Rules
    seconds: float
    rows: list[SearchRow] = field(default_factory=list)
    decided: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    current: Setting = field(init=False)
    """The best setting so far."""
    first_win: tuple[Setting, ArmResult] | None = None
    """The first setting that won in training, against the start itself."""
    wins: int = 0
    busy: bool = False
    short: bool = False
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.current = self.space.start
        self.end = self.rules.clock() + self.seconds

    def _left(self) -> float:
        return self.end - self.rules.clock()

    def _spare(self) -> float:
        """Seconds left but for those that comparing the result with the start will take."""
        reserved = _RESERVE * self.seconds
        if self.current != self.space.start:
            reserved = max(reserved, self.rules.cost("run", self.space.start, [self.current]))
        return self._left() - reserved

    # One stage

    def stage(self, stage: SearchStage, later: float) -> None:
        before = self.current
        arms = [arm for arm in unique(before.having(change) for change in stage.changes) if arm != before]
        share = stage.weight / (stage.weight + later)
        results = self._try(stage, before, arms, share / 2 if stage.beside else share)
        self._take(stage, before, results)
        if stage.beside:
            good = self._promising(stage, before, results)
            more = [setting.having(change) for setting in good for change in stage.beside]
            base = self.current
            # Those of the best setting first: what there is no time for is dropped from the end.
            arms = [arm for arm in unique(more) if arm not in (base, before, *results)]
            self._take(stage, base, self._try(stage, base, arms, share))

    def _try(self, stage: SearchStage, base: Setting, arms: list[Setting], share: float) -> dict[Setting, ArmResult]:
        """Measure as many of the arms, from the first one, as there is time for."""
        if not arms:
            return {}
        spare = self._spare()
        ceiling = self.rules.ceiling(stage, base) if spare > 0 else None
        if ceiling is not None and ceiling[0] < _LEAST_CEILING:
            for arm in arms:
                self._row(stage, base, arm, why=ceiling[1])
            return {}
        spare = self._spare()  # finding the ceiling takes time
        granted = max(spare * share, min(spare, self.rules.cost(stage.kind, base, arms[:1])))
        fit = list(arms)
        while fit and self.rules.cost(stage.kind, base, fit) > granted:
            fit.pop()
        if not fit and spare > 0 and not any(row.measured for row in self.rows):
            fit = arms[:1]  # Too few rounds for a verdict still say whether it looks promising.
        results: Mapping[Setting, ArmResult] = {}
        late = f"{max(0.0, granted):.0f} s were left for this"
        if len(fit) < len(arms):
            needed = self.rules.cost(stage.kind, base, arms[: len(fit) + 1])
            late = f"with what is before it, it needs about {max(1.0, needed):.0f} s; {late}"
        if fit:
            self.rules.tell(f"{stage.name}: {'; '.join(changes_text(arm.apart(base)) for arm in fit)}")
            results = self._measured(stage, base, fit, granted)
        for setting in arms:
            self._row(stage, base, setting, results.get(setting), why=late)
        self.short = self.short or len(results) < len(arms)
        if stage.takes:
            concluded = len(results) == len(arms) and all(one.outcome != "unclear" for one in results.values())
            (self.decided if concluded else self.doubtful).update(name for arm in arms for name in arm.apart(base))
        return dict(results)

    def _measured(
        self, stage: SearchStage, base: Setting, arms: list[Setting], granted: float
    ) -> Mapping[Setting, ArmResult]:
        """Measure. A busy machine doesn't end the search, as partial results are useful too."""
        results = self.measure(stage.kind, base, arms, granted)
        self.busy = self.busy or any(measured.busy for measured in results.values())
        return results

    def _row(
        self, stage: SearchStage, base: Setting, setting: Setting, measured: ArmResult | None = None, *, why: str
    ) -> None:
        """Add a row. why: the remark on an arm that was not measured."""
        row = SearchRow(stage=stage.name, kind=stage.kind, base=base, setting=setting, verdict="not tried", why=why)
        if measured is not None:
            verdict: Verdict = _VERDICTS.get(measured.outcome, measured.outcome)  # type: ignore[arg-type]
            row = replace(row, verdict=verdict, measured=measured, why=measured.why)
        self.rows.append(row)

    def _take(self, stage: SearchStage, base: Setting, results: Mapping[Setting, ArmResult]) -> None:
        """Continue from the arm with the largest gain, if one is clearly faster."""
        clear: list[tuple[float, Setting]] = []
        for setting, measured in results.items():
            if measured.outcome != "faster" or measured.busy or not stage.takes:
                continue
            against = self.rules.pays(base, setting, measured)
            if (measured.low or 0.0) <= 1 + stage.least:
                against = f"a gain of less than {stage.least:.0%} is not worth a change of this kind"
            if against:
                self._amend(base, setting, why=against)
                continue
            clear.append((measured.gain or 0.0, setting))
        if not clear:
            return
        best = max(clear, key=lambda pair: pair[0])[1]
        for _, setting in clear:
            self._amend(base, setting, why=BEATEN, superseded=True)
        self._amend(base, best, taken=True, why=results[best].why, superseded=False)
        self.current = best
        if stage.kind in TRAINS:
            self.wins += 1
            self.first_win = self.first_win or (best, results[best])

    def _amend(
        self, base: Setting, setting: Setting, *, taken: bool = False, superseded: bool = False, why: str = ""
    ) -> None:
        at = max(at for at, row in enumerate(self.rows) if (row.base, row.setting) == (base, setting))
        self.rows[at] = replace(self.rows[at], taken=taken, superseded=superseded, why=why)

    def _promising(self, stage: SearchStage, base: Setting, results: Mapping[Setting, ArmResult]) -> list[Setting]:
        """The arms, the base among them, that `reach` could carry past the best; the best ones first."""
        gains = {base: 1.0}
        for setting, measured in results.items():
            if measured.outcome not in ("disagreed", "failed") and not measured.busy:
                gains[setting] = measured.gain or 0.0
        best = self.current
        leader = gains.get(best, 1.0)
        ranked = sorted(gains, key=lambda setting: (setting != best, -gains[setting]))
        high = {setting: results[setting].high if setting in results else 1.0 for setting in gains}
        good = [setting for setting in ranked if setting == best or (high[setting] or 0.0) * stage.reach > leader]
        why = f"eager it is so far behind that gaining {stage.reach:g} times would not do"
        for arm in (arm.having(change) for arm in ranked if arm not in good for change in stage.beside):
            self._row(stage, best, arm, why=why)
        return good

    # The end

    def result(self) -> Searched:
        best, gain = self._confirmed()
        for at, row in enumerate(self.rows):
            if row.taken and any(best[name] != value for name, value in row.changes.items()):
                self.rows[at] = replace(row, taken=False, why=GIVEN_UP, superseded=True)
        return Searched(
            start=self.space.start,
            best=best,
            rows=tuple(self.rows),
            decided=frozenset(self.decided - self.doubtful),
            gain=gain,
            busy=self.busy,
            short=self.short,
        )

    def _confirmed(self) -> tuple[Setting, ArmResult | None]:
        """The result, in steps with their batches against the start itself, unless that is what was measured."""
        if self.first_win is None:
            return self.current, None
        first, gain = self.first_win
        if self.wins == 1 and any(row.taken and row.kind == "run" for row in self.rows):
            return self.current, gain
        stage = SearchStage(name="everything taken, against the start", kind="run", changes=())
        target, start = self.current, self.space.start
        spare = max(0.0, self._left())
        if self.rules.cost("run", start, [target]) > spare:
            self.short = True
            why = f"{spare:.0f} s were left: only the first gain is kept, which was over the start itself"
            self._row(stage, start, target, why=why)
            return self._back(first), gain
        self.rules.tell(stage.name)
        results = self._measured(stage, start, [target], max(spare, 1.0))
        measured = results.get(target, ArmResult(outcome="unclear", why="there was no time for it"))
        self._row(stage, start, target, measured, why="")
        if measured.outcome == "faster" and not measured.busy:
            self._amend(start, target, taken=True, why=measured.why)
            return target, measured
        if measured.outcome == "unclear":
            self._amend(start, target, why=f"{measured.why}: only the first gain is kept, which was over the start")
            return self._back(first), gain
        self._amend(start, target, why=f"{measured.why} taken together, nothing is left of what each gained".strip())
        return self._back(start), None

    def _back(self, to: Setting) -> Setting:
        """`to`, with the changes that won in validation; the changes that are dropped are not decided."""
        changes: dict[str, Value] = {}
        for row in self.rows:
            if row.taken and row.kind not in TRAINS:
                changes |= row.changes
        setting = to.having(changes)
        self.decided -= set(self.current.apart(setting))
        return setting
