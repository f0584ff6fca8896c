"""What is tried for a run, in which order, and how the result becomes a run's YAML."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from hasten.config.load import from_dict, to_dict
from hasten.config.schema import RunConfig
from hasten.doctor.training import WINDOW_BATCH, RunPlan
from hasten.doctor.tune.search import ArmResult, Changes, Setting, Stage


def start_of(planned: RunPlan) -> Setting:
    """The run as configured; what that leaves to be measured is float32, contiguous and not compiled."""
    config = planned.config
    train, sample = config.train, config.sample
    return Setting.of(
        {
            "train.precision": train.precision or "fp32",
            "train.channels_last": bool(train.channels_last),
            "train.compile": bool(train.compile),
            "train.capture": bool(train.capture),
            "cache.home": config.cache.home,
            "sample.compile": bool(sample.compile),
            "infer.batch_size": config.infer.batch_size or WINDOW_BATCH,
        }
    )


def stages_of(planned: RunPlan, start: Setting, homes: Iterable[str]) -> list[Stage]:
    """Stages from what matters most. homes: where the cases would fit."""
    cuda = planned.device.type == "cuda"
    precisions = ("fp32", "tf32", "bf16", "fp16") if cuda else ("fp32", "bf16")
    grid: tuple[Changes, ...] = tuple(
        {"train.precision": precision, "train.channels_last": last, "train.compile": False}
        for precision, last in itertools.product(precisions, (False, True))
    )
    # Compiling may favour the other memory format than the one that is faster without.
    compiled: tuple[Changes, ...] = (
        {"train.compile": True},
        *({"train.compile": True, "train.channels_last": last} for last in (False, True)),
    )
    feed: list[Changes] = [{"cache.home": home} for home in homes]
    feed += [{"sample.compile": not start["sample.compile"]}]
    feed += [{"cache.home": home, "sample.compile": True} for home in homes] if cuda else []
    graph: tuple[Changes, ...] = ({"train.capture": True}, {"train.capture": False})
    windows = int(start["infer.batch_size"])
    sizes = dict.fromkeys((max(1, windows // 2), 2 * windows, 4 * windows))
    return [
        Stage(name="precision and memory format", changes=grid, weight=4.0),
        Stage(name="compiling", changes=compiled, weight=2.0),
        Stage(name="cache home and batch program", changes=tuple(feed), weight=2.0),
        *([Stage(name="CUDA graph", changes=graph)] if cuda else []),
        Stage(name="sliding window", kind="validate", changes=tuple({"infer.batch_size": each} for each in sizes)),
    ]


def pays_within(steps: int) -> Callable[[Setting, ArmResult], str]:
    """Compare what compiling saves over a run of `steps` steps with its one-time cost: the reason against it, or ""."""

    def against(arm: Setting, measured: ArmResult) -> str:
        if not measured.once or measured.seconds is None or measured.base_seconds is None:
            return ""
        saved_s = steps * (measured.base_seconds - measured.seconds)
        # `hasten train` compiles twice: a copy to check its numbers, then the network itself.
        cost_s = 2 * measured.once
        if saved_s > cost_s:
            return ""
        return f"{steps} steps would save {saved_s:.0f} s, and compiling costs a run about {cost_s:.0f} s"

    return against


def apply_changes(config: RunConfig, start: Setting, best: Setting, decided: Iterable[str]) -> RunConfig:
    """`config` with what `best` changes, and with fields that it leaves open where the search decided about them."""
    tree = to_dict(config)
    changed = best.apart(start)
    for name in {*changed, *decided}:
        section, _, key = name.partition(".")
        if name in changed or tree[section][key] is None:
            tree[section][key] = best[name]
    if "cache.home" in changed:
        tree["cache"] |= {"device": "auto", "ram": "auto"}
    return from_dict(tree, where="the tuned run")


def changes_between(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Fields that are not as they were: value before and after."""
    old, new = to_dict(before), to_dict(after)
    return {
        f"{section}.{field}": (old[section][field], value)
        for section, content in new.items()
        for field, value in content.items()
        if value != old[section][field]
    }
