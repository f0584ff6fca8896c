"""Changed settings of a resumed run: refused, or applied and logged."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from hasten.cases.locate import same_source
from hasten.config.resume_rules import RUN_RULES, Changes, Rules, changes_of, describe, rule_of, text_of, with_settled
from hasten.config.schema import RunConfig
from hasten.config.settled import with_settings
from hasten.observe.rundir import METRICS_JSONL, SUMMARY_JSON, append_jsonl

log = logging.getLogger(__name__)


def resumed_run(before: RunConfig, config: RunConfig) -> tuple[RunConfig, Changes]:
    """`resumed_settings` for a segmentation run, whose chain and loss may be user code."""
    for section, name in (("augment", "chain"), ("loss", "name")):
        old, new = getattr(before, section), getattr(config, section)
        if getattr(old, name) != getattr(new, name):  # the digest is that of the code before
            digest = new.digest if new.digest != old.digest else None
            before, config = (with_settings(each, section, digest=digest) for each in (before, config))
    return resumed_settings(before, config, RUN_RULES)


def resumed_settings(before: Any, config: Any, rules: Rules) -> tuple[Any, Changes]:
    """Fill the open fields of `config` from `before`, the settings of the run; also return what `config` changes.

    Raises ValueError for changes that can't be.
    """
    config = with_settled(before, config, rules)
    if same_source(before.data.source, config.data.source):
        before = with_settings(before, "data", source=config.data.source)
    return config, changes_of(before, config, rules)


def require_use(out: Path, changes: Changes, rules: Rules, more: str) -> None:
    """Log that the run in `out` is complete. Raises ValueError for changes that would have changed its training.

    more: the setting by which it could be trained for longer.
    """
    idle = [f"{name}={text_of(now)}" for name, (_, now) in changes.items() if rule_of(name, rules).kind == "training"]
    if idle:
        remedy = f"start another run in a new --out, or raise {more}"
        raise ValueError(f"{out}: the run is complete; {', '.join(idle)} would change nothing: {remedy}")
    log.warning("%s: the run is complete; nothing is left to train", out)


def tell_changes(out: Path, step: int, changes: Changes, rules: Rules) -> None:
    """Log the settings that change from `step` on, and write them into metrics.jsonl."""
    for name, (was, now) in changes.items():
        log.warning("%s: from step %d on, %s", out, step, describe(name, was, now, rules))
    append_jsonl(out / METRICS_JSONL, {"kind": "resumed", "step": step, "changed": changes})


def complete_summary(out: Path, config: RunConfig, changes: Changes) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do under `config`, which is logged; None for an incomplete one."""
    try:
        summary: dict[str, Any] = json.loads((out / SUMMARY_JSON).read_bytes())
        status, target = summary["status"], summary["target"]["value"]
        # A run that its time limit paced passed through the whole schedule in fewer steps.
        position = summary["position"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if status in ("finished", "time_up") and position >= (config.train.steps or 0):
        require_use(out, changes, RUN_RULES, "train.steps")
    elif status == "target_reached" and target == config.train.target:
        require_use(out, changes, RUN_RULES, "train.target")
    else:
        return None
    return summary
