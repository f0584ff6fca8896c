"""The search: stages one after another, each compared with the best setting so far. Nothing here runs a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Value = str | int | float | bool
Changes = Mapping[str, Value]
"""Some fields of a run's YAML, such as `train.precision`, and their new values."""
Kind = Literal["train", "validate"]
"""What is timed: training steps with their batches, or a validation."""
Outcome = Literal["faster", "slower", "same", "unclear", "disagreed", "failed"]

_RESERVE = 0.12
"""Share of the time that is reserved for comparing the result with the start."""


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
    """Median of the arm, for one step or one validation."""
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
    weight: float = 1.0
    """Weight of the stage, against those of later stages, in dividing the remaining time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRow:
    """One line of the table of everything tried."""

    stage: str
    kind: Kind
    base: Setting
    setting: Setting
    measured: ArmResult | None
    """None where there was no time for it."""
    taken: bool = False
    why: str = ""

    @property
    def changes(self) -> dict[str, Value]:
        return self.setting.apart(self.base)

    @property
    def verdict(self) -> str:
        return "not tried" if self.measured is None else self.measured.outcome


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

    refuse: the reason against a setting that is faster, such as that compiling does not pay within the run; "" for
    none. Several gains are measured once more together, against the start; what is not confirmed is given up, but for
    the first gain where the measurement stayed open.
    """
    end, rows, decided = clock() + seconds, list[SearchRow](), set[str]()
    best, gains = start, list[tuple[Setting, ArmResult]]()
    for number, stage in enumerate(stages):
        later = sum(each.weight for each in stages[number + 1 :])
        share_s = max(0.0, end - clock()) * (1 - _RESERVE) * stage.weight / (stage.weight + later)
        compared = _compared(stage, best, measure, share_s, refuse, tell)
        rows += compared
        names = {name for row in compared for name in row.changes}
        conclusive = all(row.verdict not in ("not tried", "unclear") for row in compared)
        decided = decided | names if conclusive else decided - names
        for row in compared:
            if row.taken and row.measured is not None:
                best = row.setting
                gains += [(best, row.measured)] if stage.kind == "train" else []
    gain = gains[0][1] if gains else None
    if len(gains) > 1:
        whole = Stage(name="everything taken, against the start", changes=(best.apart(start),))
        (last,) = _compared(whole, start, measure, max(0.0, end - clock()), refuse, tell)
        rows.append(last)
        if last.taken:
            gain = last.measured
        else:
            is_open = last.verdict in ("not tried", "unclear")
            kept, gain = (gains[0][0], gain) if is_open else (start, None)
            validated = [row.changes for row in rows if row.taken and row.kind == "validate"]
            kept = kept.having({name: value for changes in validated for name, value in changes.items()})
            decided -= set(best.apart(kept))
            best = kept
    rows = [
        replace(row, taken=False, why="taken at first, and not in the end")
        if row.taken and best.having(row.changes) != best
        else row
        for row in rows
    ]
    return Searched(best=best, rows=tuple(rows), decided=frozenset(decided), gain=gain)


def _compared(
    stage: Stage,
    base: Setting,
    measure: Measure,
    seconds: float,
    refuse: Callable[[Setting, ArmResult], str],
    tell: Callable[[str], object],
) -> list[SearchRow]:
    """The rows of a stage, of which that is taken which gained most."""
    arms = [arm for arm in dict.fromkeys(base.having(change) for change in stage.changes) if arm != base]
    results: Mapping[Setting, ArmResult] = {}
    if arms and seconds > 0:
        tell(f"{stage.name}: {'; '.join(changes_text(arm.apart(base)) for arm in arms)}")
        results = measure(stage.kind, base, arms, seconds)
    faster = {arm: one for arm, one in results.items() if one.outcome == "faster" and not one.busy}
    against = {arm: refuse(arm, one) for arm, one in faster.items()}
    gains = {arm: one.gain or 0.0 for arm, one in faster.items() if not against[arm]}
    won = max(gains, key=lambda arm: gains[arm], default=None)

    def why(arm: Setting) -> str:
        if arm not in results:
            return f"{seconds:.0f} s were left for this, too little"
        lost = "another one gained more" if arm in gains and arm != won else ""
        return against.get(arm) or lost or results[arm].why

    return [
        SearchRow(
            stage=stage.name,
            kind=stage.kind,
            base=base,
            setting=arm,
            measured=results.get(arm),
            taken=arm == won,
            why=why(arm),
        )
        for arm in arms
    ]


def changes_text(changes: Changes) -> str:
    """Text for people: `train.precision=bf16, train.compile=off`."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in changes.items()) or "as it is"


def value_text(value: object) -> str:
    """A value as in YAML; `open` for None."""
    return "open" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
