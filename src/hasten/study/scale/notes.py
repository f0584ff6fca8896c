"""Warnings and notes on the machines and settings behind a scaling study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hasten.observe.cpu_load import BUSY
from hasten.observe.values import integer, number, number_in
from hasten.study.scale.log import Log
from hasten.study.scale.run_logs import MEASURED
from hasten.study.scale.series import Series, cpu_cores, workers


def notes_of(series: Sequence[Series]) -> tuple[list[str], list[str]]:
    """Sentences with reasons to doubt the figures, and sentences with other notes."""
    logs = list({log.source: log for one in series for log in one.logs}.values())
    doubts = [*_overloaded(logs), *_busy(logs), *_one_machine(logs), *_unlike(logs), *_modes(logs)]
    return list(filter(None, doubts)), list(filter(None, [_mode(logs), *(_rates(one) for one in series)]))


def _overloaded(logs: Sequence[Log]) -> list[str]:
    over = {log.world: cores for log in logs if 0 < (cores := cpu_cores(log) or 0) < log.world}
    return [
        f"{workers(world)} ran on {count} cores: they took turns, so these figures say nothing of scaling."
        for world, count in over.items()
    ]


def _busy(logs: Sequence[Log]) -> list[str]:
    busy = [log.source for log in logs if (number(_facts(log).get("others_cores")) or 0.0) > BUSY]
    if not busy:
        return []
    return [f"Other programs used more than {BUSY:g} cores beside {', '.join(busy)}: their times are doubtful."]


def _one_machine(logs: Sequence[Log]) -> list[str]:
    """Workers on one CPU share its hardware, unlike workers with a GPU each."""
    cpu_logs = [log for log in logs if _on_cpu(log)]
    if not any(log.world > 1 for log in cpu_logs):
        return []
    cores = max(integer(_facts(log).get("cores")) or 0 for log in cpu_logs)
    note = (
        f"All workers shared one machine of {cores} cores, and its memory bandwidth and caches, which more processes "
        "don't make more of."
    )
    used = {log.world: log.world * number_in(str(_facts(log).get("threads"))) for log in cpu_logs}
    if len(used) > 1 and len(set(used.values())) == 1:
        total = next(iter(used.values()))
        note += (
            f" Every count of workers used {total:g} threads in all, so the hardware allows about 1x, and what is above"
            " it is what one process loses with many threads. With one thread a worker each has the same share at any "
            "count."
        )
    return [note]


def _unlike(logs: Sequence[Log]) -> list[str]:
    """Settings that runs chose by measuring, where compared runs chose differently."""
    sentences = []
    for name in MEASURED:
        by_value: dict[str, set[int]] = {}
        for log in logs:
            if log.machine is not None:
                by_value.setdefault(str(_facts(log).get(name)), set()).add(log.world)
        if len(by_value) > 1:
            each = ", ".join(
                f"{value} with {', '.join(map(str, sorted(worlds)))}" for value, worlds in by_value.items()
            )
            sentences.append(
                f"train.{name} was not the same in all runs ({each} workers), which changes their speed; "
                "set it in the YAML."
            )
    devices = sorted({str(_facts(log).get("device")) for log in logs if log.machine is not None})
    if len(devices) > 1:
        sentences.append(f"The runs were on unlike devices ({', '.join(devices)}), which can't be compared.")
    return sentences


def _modes(logs: Sequence[Log]) -> list[str]:
    modes = sorted({log.mode for log in logs if log.mode and log.world > 1})
    mixed = f"{' and '.join(modes)} scaling are mixed here; study each in its own folder."
    return [mixed] if len(modes) > 1 else []


def _mode(logs: Sequence[Log]) -> str:
    modes = {log.mode for log in logs if log.world > 1}
    if modes == {"weak"}:
        return (
            "Weak scaling: each worker has the batch of a single one, so the global batch and the learning rate grow "
            "with the workers, and an epoch has fewer steps."
        )
    if modes == {"strong"}:
        return "Strong scaling: the global batch is the same on every count of workers, which share it."
    return ""


def _rates(series: Series) -> str:
    """A note where a peak learning rate was scaled with the workers."""
    rates = {log.world: log.rate for log in series.logs if log.rate}
    base = series.base.world
    if len(rates) < 2 or base not in rates:
        return ""
    grown = {world: rate / rates[base] for world, rate in rates.items() if world != base}
    top = max(grown)
    text = f"{series.strategy}: the peak learning rate goes from {rates[base]:g} to {rates[top]:g} with {workers(top)}"
    if all(abs(factor - world / base) < 0.01 * factor for world, factor in grown.items()):
        return f"{text}, in proportion to the workers."
    return f"{text}." if any(abs(factor - 1) > 0.01 for factor in grown.values()) else ""


def _facts(log: Log) -> dict[str, Any]:
    return dict(log.machine or {})


def _on_cpu(log: Log) -> bool:
    return log.machine is not None and not _facts(log).get("gpus")
