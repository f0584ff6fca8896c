"""Rules for resuming a run: which settings may change, and the effect of a change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from hasten.config.url import shown

_Config = TypeVar("_Config")


@dataclass(frozen=True, slots=True)
class Rule:
    kind: Literal["fixed", "training", "machine"]
    """`fixed`: can't change; `training`: changes what is learned from there on; `machine`: only how it is computed."""
    note: str = ""
    """What a user must know of a change, or can do instead of it."""
    auto: bool = False
    """Whether null leaves the decision to the run, which keeps it."""


Rules = Mapping[str, Rule]
"""Rules by name, section.field or a pattern of it; the first that matches counts."""

_FIXED, _TRAINING, _MACHINE = Rule("fixed"), Rule("training"), Rule("machine")
_SCHEDULE = Rule("training", "the schedule is computed again, and the run continues at its step of the new one")

_IN_STATE = Rule("fixed", "the saved state of the optimizer holds it")


def _rules(section: str, names: str, rule: Rule) -> Rules:
    return {f"{section}.{name}": rule for name in names.split()}


RUN_RULES: Rules = {
    "data.source": Rule("fixed", "if the data set was moved, put a link to it in its old place"),
    "data.split.*": Rule("fixed", auto=True),
    "data.*": _FIXED,
    "prepare.num_threads": _MACHINE,
    "prepare.orientation": _FIXED,
    "prepare.*": Rule("fixed", auto=True),
    "cache.max_points": Rule("training", "foreground voxels are drawn from another selection"),
    "cache.*": _MACHINE,
    "sample.batch_size": Rule(
        "training",
        "train.steps counts the new batches; the learning rate stays, unless train.learning_rate_batch is set; samples "
        "are numbered by step times batch size, so that a part of an epoch is skipped or repeated once",
        auto=True,
    ),
    "sample.*": Rule("training", auto=True),
    "augment.digest": Rule("training", "the chain's source is another one", auto=True),
    "augment.*": _TRAINING,
    "network.digest": Rule("training", "the network's source is another one", auto=True),
    "network.weights": Rule("fixed", "they are where a run starts from, and are not loaded again", auto=True),
    "network.*": Rule("fixed", auto=True),
    "loss.digest": Rule("training", "the loss's source is another one", auto=True),
    "loss.*": Rule("training", "losses before and after can't be compared"),
    **_rules("train", "learning_rate_batch schedule milestones warmup_fraction", _SCHEDULE),
    **_rules("train", "momentum weight_decay lr_scale", _IN_STATE),
    **_rules("train", "target clip_norm accumulate ema", _TRAINING),
    **_rules("train", "activations cudnn_benchmark", _MACHINE),
    **_rules("train", "channels_last fused_kernels compile capture checkpoint_every", Rule("machine", auto=True)),
    "train.seed": Rule("fixed", "the order of the cases follows from it"),
    "train.device": Rule("machine", "results are not bit for bit those of the device before"),
    "train.optimizer": _FIXED,
    "train.freeze": Rule("fixed", "another run can start from this one's weights, with network.weights"),
    "train.steps": Rule("training", "the schedule is stretched or shortened to that many steps", auto=True),
    "train.learning_rate": Rule("training", "it is the peak of the schedule, which keeps its shape", auto=True),
    "train.precision": Rule("training", auto=True),
    "train.metric": Rule("training", "best.pt is compared by the new metric"),
    "train.budget": Rule("training", "counts the whole run; the rest of the schedule ends in it"),
    "train.validate_every": Rule("training", auto=True),
    "train.validate_from": _TRAINING,
    "infer.batch_size": _MACHINE,
    "infer.*": Rule("training", "scores of validations before and after can't be compared", auto=True),
    "observe.*": _MACHINE,
    **_rules("distribute", "parts exchange_every", Rule("training", "the samples are drawn in another order")),
    "distribute.strategy": Rule("training", "sums are taken in another order"),
    "distribute.gradients": _TRAINING,
    "distribute.sync_norm": _TRAINING,
    "distribute.*": _MACHINE,
}

Changes = dict[str, tuple[Any, Any]]
"""Dotted name to the value before and the one now."""


def rule_of(name: str, rules: Rules) -> Rule:
    """Raises KeyError for a name that no rule is for."""
    for pattern, rule in rules.items():
        if fnmatchcase(name, pattern):
            return rule
    raise KeyError(name)


def flat(settings: Any) -> dict[str, Any]:
    """Every setting of a config by its dotted name."""
    result: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            result |= {f"{field.name}.{name}": each for name, each in flat(value).items()}
        else:
            result[field.name] = value
    return result


def with_settled(before: _Config, config: _Config, rules: Rules, at: str = "") -> _Config:
    """`config` with its open fields set to the values that the run used."""
    new: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        old, value, name = getattr(before, field.name), getattr(config, field.name), f"{at}{field.name}"
        if dataclasses.is_dataclass(value):
            new[field.name] = with_settled(old, value, rules, f"{name}.")
        elif value is None and rule_of(name, rules).auto:
            new[field.name] = old
    return dataclasses.replace(config, **new)  # type: ignore[type-var]


def changes_of(before: Any, config: Any, rules: Rules) -> Changes:
    """What `config` changes in a run of the settings `before`.

    Raises ValueError that names every setting that can't change, with both values and what to do instead.
    """
    old, new = flat(before), flat(config)
    changes = {name: (old[name], new[name]) for name in new if old[name] != new[name]}
    mistakes = []
    for name, (was, now) in changes.items():
        rule = rule_of(name, rules)
        if rule.kind == "fixed" or (name, now) == ("train.precision", "fp16"):
            why = f" ({rule.note})" if rule.note else ""
            mistakes.append(
                f"{name}={text_of(now)}: can't change when a run is resumed, and this one has {text_of(was)}{why}; "
                "leave it out, or start another run in a new --out"
            )
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return changes


def describe(name: str, was: Any, now: Any, rules: Rules) -> str:
    """One change in words."""
    note = rule_of(name, rules).note
    return f"{name} changes from {text_of(was)} to {text_of(now)}" + (f": {note}" if note else "")


def text_of(value: Any) -> str:
    """A value as an override spells it, with the secrets of URLs removed."""
    return shown(value if isinstance(value, str) else json.dumps(value))
