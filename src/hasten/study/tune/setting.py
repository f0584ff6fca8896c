"""One point of the search: a value for every knob."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Value = str | int | float | bool
Changes = Mapping[str, Value]
"""Some knobs and their new values."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for every knob, by the knob's name; equal where all values are."""

    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Changes) -> Setting:
        return cls(tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        return dict(self.values)[name]

    def having(self, changes: Changes) -> Setting:
        """The same but for `changes`, whose knobs it must have."""
        values = dict(self.values)
        assert changes.keys() <= values.keys(), changes
        return Setting.of({**values, **changes})

    def apart(self, other: Setting) -> dict[str, Value]:
        """The knobs that differ from `other`, with their values here."""
        theirs = dict(other.values)
        return {name: value for name, value in self.values if theirs.get(name) != value}


def changes_text(changes: Changes) -> str:
    """For people: `precision=bf16, compile=off`."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in changes.items()) or "as it is"


def value_text(value: Value) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def unique(settings: Iterable[Setting]) -> list[Setting]:
    """In order, each once."""
    return list(dict.fromkeys(settings))
