"""The search: stages one after another, each compared with the best setting so far. Nothing here runs a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Value = str | int | float | bool
Changes = Mapping[str, Value]
"""Some fields of a run's YAML, such as `train.precision`, and their new values."""
Kind = Literal["train", "validate"]
"""What is timed: training steps with their batches, or a validation."""
Outcome = Literal["faster", "slower", "same", "unclear", "disagreed", "failed"]
Verdict = Literal["won", "lost", "same", "unclear", "disagreed", "failed", "not tried"]

_RESERVE = 0.12
"""Share of the time that is reserved for comparing the result with the start."""
_VERDICTS: dict[Outcome, Verdict] = {"faster": "won", "slower": "lost"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for every field that the search changes; equal where all values are."""

    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Changes) -> Setting:
        return cls(tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        return dict(self.values)[name]

    def having(self, changes: Changes) -> Setting:
        """This setting with `changes`, whose fields it must have."""
        values = dict(self.values)
        assert changes.keys() <= values.keys(), changes
        return Setting.of({**values, **changes})

    def apart(self, other: Setting) -> dict[str, Value]:
        """The fields that differ from `other`, with their values here."""
        theirs = dict(other.values)
        return {name: value for name, value in self.values if theirs.get(name) != value}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmResult:
    """The result of one setting against the base of its comparison."""

    outcome: Outcome
    gain: float | None = None
    """Base time / arm time; None if it was not timed."""
    low: float | None = None
    high: float | None = None
    seconds: float | None = None
    """Median of the arm, for the work of one step of the base, or for one validation."""
    base_seconds: float | None = None
    agreement: str = ""
    """How far its loss and gradient norm are from the base's, in words."""
    why: str = ""
    busy: bool = False
    """Whether other programs took too much of the machine meanwhile."""
    once: float = 0.0
    """Seconds that a run pays once for it, such as compiling."""


Measure = Callable[[Kind, Setting, Sequence[Setting], float], Mapping[Setting, ArmResult]]
"""Compares arms with the base, interleaved, within about that many seconds: all, or the first that fit in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Some changes that are compared with the best setting so far."""

    name: str
    kind: Kind = "train"
    changes: tuple[Changes, ...]
    """Each makes an arm of the best setting so far."""
    takes: bool = True
    """Whether what wins is taken; else it is only reported."""
    least: float = 0.0
    """Share that an arm must gain, beyond noise, at the lower end of its interval to be taken."""
    weight: float = 1.0
    """Weight of the stage, against those of later stages, in dividing the remaining time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRow:
    """One line of the table of everything tried."""

    stage: str
    kind: Kind
    base: Setting
    setting: Setting
    measured: ArmResult | None = None
    taken: bool = False
    advised: bool = False
    """Whether it won, and is only reported."""
    why: str = ""

    @property
    def changes(self) -> dict[str, Value]:
        return self.setting.apart(self.base)

    @property
    def verdict(self) -> Verdict:
        if self.measured is None:
            return "not tried"
        return _VERDICTS.get(self.measured.outcome, self.measured.outcome)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    best: Setting
    """The start itself unless something was clearly faster."""
    rows: tuple[SearchRow, ...]
    decided: frozenset[str]
    """Fields for which the measurements were conclusive, changed or not."""
    gain: ArmResult | None
    """Gain of `best` against the start, in training; None where they are the same, or only validation gained."""

    @property
    def busy(self) -> bool:
        return any(row.measured is not None and row.measured.busy for row in self.rows)

    @property
    def untried(self) -> int:
        """Comparisons that there was no time for."""
        return sum(row.measured is None for row in self.rows)


def search(
    start: Setting,
    stages: Sequence[Stage],
    measure: Measure,
    *,
    seconds: float,
    refuse: Callable[[Setting, ArmResult], str] = lambda setting, measured: "",
    tell: Callable[[str], object] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Searched:
    """Run the stages within about `seconds`; only settings that are clearly faster and agree are taken.

    refuse: the reason against a setting that won, such as that compiling does not pay within the run; "" for none.
    """
    run = _Search(start, measure, refuse, tell, clock, current=start, end=clock() + seconds)
    for number, stage in enumerate(stages):
        later = sum(each.weight for each in stages[number + 1 :])
        run.stage(stage, run.left() * (1 - _RESERVE) * stage.weight / (stage.weight + later))
    best, gain = run.confirmed()
    rows = (
        replace(row, taken=False, why="taken at first, and not in the end")
        if row.taken and any(best[name] != value for name, value in row.changes.items())
        else row
        for row in run.rows
    )
    return Searched(best=best, rows=tuple(rows), decided=frozenset(run.decided), gain=gain)


@dataclass(slots=True)
class _Search:
    start: Setting
    measure: Measure
    refuse: Callable[[Setting, ArmResult], str]
    tell: Callable[[str], object]
    clock: Callable[[], float]
    current: Setting
    """The best setting so far."""
    end: float
    rows: list[SearchRow] = field(default_factory=list)
    decided: set[str] = field(default_factory=set)
    wins: list[tuple[Setting, ArmResult]] = field(default_factory=list)
    """The settings taken in training, each with its gain over the one before."""

    def left(self) -> float:
        return max(0.0, self.end - self.clock())

    def stage(self, stage: Stage, seconds: float) -> None:
        """Compare the arms of a stage in these seconds, and continue from the one that gained most."""
        base = self.current
        arms = [arm for arm in dict.fromkeys(base.having(change) for change in stage.changes) if arm != base]
        results = self._measured(stage, base, arms, seconds) if arms else {}
        names = {name for arm in arms for name in arm.apart(base)}
        if stage.takes and len(results) == len(arms) and all(one.outcome != "unclear" for one in results.values()):
            self.decided |= names
        else:
            self.decided -= names
        winners: dict[Setting, ArmResult] = {}
        for arm, one in results.items():
            if one.outcome != "faster" or one.busy:
                continue
            against = self.refuse(arm, one)
            if (one.low or 0.0) <= 1 + stage.least:
                against = f"a gain of less than {stage.least:.0%} is not worth a change of this kind"
            if against or not stage.takes:
                self._amend(arm, advised=True, why=against or one.why)
            else:
                winners[arm] = one
                self._amend(arm, why="another one gained more")
        if not winners:
            return
        self.current = max(winners, key=lambda arm: winners[arm].gain or 0.0)
        self._amend(self.current, taken=True, why=winners[self.current].why)
        if stage.kind == "train":
            self.wins.append((self.current, winners[self.current]))

    def _measured(
        self, stage: Stage, base: Setting, arms: Sequence[Setting], seconds: float
    ) -> Mapping[Setting, ArmResult]:
        results: Mapping[Setting, ArmResult] = {}
        if seconds > 0:
            self.tell(f"{stage.name}: {'; '.join(changes_text(arm.apart(base)) for arm in arms)}")
            results = self.measure(stage.kind, base, arms, seconds)
        for arm in arms:
            one = results.get(arm)
            why = one.why if one is not None else f"{seconds:.0f} s were left for this, too little"
            row = SearchRow(stage=stage.name, kind=stage.kind, base=base, setting=arm, measured=one, why=why)
            self.rows.append(row)
        return results

    def _amend(self, setting: Setting, *, taken: bool = False, advised: bool = False, why: str) -> None:
        """Change the last row of a setting."""
        at = max(at for at, row in enumerate(self.rows) if row.setting == setting)
        self.rows[at] = replace(self.rows[at], taken=taken, advised=advised, why=why)

    def confirmed(self) -> tuple[Setting, ArmResult | None]:
        """The result and its gain over the start, measured again where several changes were taken."""
        if len(self.wins) < 2:
            return self.current, self.wins[0][1] if self.wins else None
        stage, target = Stage(name="everything taken, against the start", changes=()), self.current
        (first, gain), *_ = self.wins
        measured = self._measured(stage, self.start, [target], self.left()).get(target)
        if measured is not None and measured.outcome == "faster" and not measured.busy:
            self._amend(target, taken=True, why=measured.why)
            return target, measured
        if measured is None or measured.outcome == "unclear":
            self._amend(target, why=f"{self.rows[-1].why}: only the first gain is kept, which was over the start")
            return self._back(first), gain
        self._amend(target, why=f"{measured.why} taken together, nothing is left of what each gained".strip())
        return self._back(self.start), None

    def _back(self, to: Setting) -> Setting:
        """`to`, with the changes that won in validation; the changes that are dropped are not decided."""
        changes: dict[str, Value] = {}
        for row in self.rows:
            if row.taken and row.kind == "validate":
                changes |= row.changes
        setting = to.having(changes)
        self.decided -= set(self.current.apart(setting))
        return setting


def changes_text(changes: Changes) -> str:
    """Text for people: `train.precision=bf16, train.compile=off`."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in changes.items()) or "as it is"


def value_text(value: object) -> str:
    """A value as in YAML; `open` for None."""
    return "open" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
