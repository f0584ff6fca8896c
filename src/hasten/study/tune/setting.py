"""A setting of the search, with a value for every knob, and its conversion to a run's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hasten.config.load import from_dict, to_dict
from hasten.config.schema import RunConfig

Value = str | int | float | bool
Changes = Mapping[str, Value]
"""Some knobs and their new values."""
_FIELDS = {
    "precision": ("train", "precision"),
    "channels_last": ("train", "channels_last"),
    "capture": ("train", "capture"),
    "activations": ("train", "activations"),
    "batch_program": ("sample", "compile"),
    "infer_batch": ("infer", "batch_size"),
}


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
        """This setting with `changes`, whose knobs it must have."""
        values = dict(self.values)
        assert changes.keys() <= values.keys(), changes
        return Setting.of({**values, **changes})

    def apart(self, other: Setting) -> dict[str, Value]:
        """The knobs that differ from `other`, with their values here."""
        theirs = dict(other.values)
        return {name: value for name, value in self.values if theirs.get(name) != value}


def changes_text(changes: Changes) -> str:
    """Text for people: `precision=bf16, compile=off`."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in changes.items()) or "as it is"


def value_text(value: Value) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def unique(settings: Iterable[Setting]) -> list[Setting]:
    """The settings in order, each once."""
    return list(dict.fromkeys(settings))


@dataclass(frozen=True, slots=True)
class Change:
    """One field of the run's YAML."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.field}: {value_of(self.before)} -> {value_of(self.after)}"


def apply_changes(
    config: RunConfig, planned: RunConfig, start: Setting, best: Setting, decided: Iterable[str]
) -> RunConfig:
    """`config` with what `best` changes, and with fields that it leaves open where the search decided about them.

    planned: the same with the plan's decisions filled in. A batch of another size keeps the patches of the whole run,
    so that there are fewer steps of a larger one, and scales the learning rate from the old one.
    """
    tree = to_dict(config)
    changed = best.apart(start)
    for name in {*changed, *decided}:
        if name in _FIELDS:
            section, field = _FIELDS[name]
            if name in changed or tree[section][field] is None:
                tree[section][field] = best[name]
    if "compile" in changed or ("compile" in decided and config.train.compile is None):
        tree["train"]["compile"] = best["compile"] != "off"
    if "home" in changed:
        tree["cache"] |= {"home": best["home"], "device": "auto", "ram": "auto"}
    if "batch_size" in changed:
        _resize(tree, planned, start["batch_size"], best["batch_size"])
    return from_dict(tree, where="the tuned run")


def changes_between(before: RunConfig, after: RunConfig) -> tuple[Change, ...]:
    old, new = to_dict(before), to_dict(after)
    return tuple(
        Change(f"{section}.{field}", old[section][field], value)
        for section, content in new.items()
        for field, value in content.items()
        if value != old[section][field]
    )


def _resize(tree: dict[str, Any], planned: RunConfig, before: Value, after: Value) -> None:
    share = int(before) / int(after)
    train = planned.train
    tree["sample"]["batch_size"] = after
    tree["train"]["learning_rate"] = train.learning_rate
    tree["train"]["learning_rate_batch"] = train.learning_rate_batch or before
    for name in ("steps", "validate_every", "checkpoint_every"):
        count = getattr(train, name)
        if count is not None:
            tree["train"][name] = max(1, round(count * share))


def value_of(value: Any) -> str:
    return "open" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
