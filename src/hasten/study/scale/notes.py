"""Warnings and notes on the machines and settings behind a scaling study."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.observe.values import number_in
from hasten.study.scale.log import Log
from hasten.study.scale.run_logs import MEASURED
from hasten.study.scale.series import Series, cpu_cores, workers

_MODES = {
    "weak": "Weak scaling: each worker has the batch of a single one, so the global batch and the learning rate grow "
    "with the workers, and an epoch has fewer steps.",
    "strong": "Strong scaling: the global batch is the same on every count of workers, which share it.",
}


def notes_of(series: Sequence[Series]) -> tuple[list[str], list[str]]:
    """Sentences with reasons to doubt the figures, and sentences with other notes."""
    logs = list({log.source: log for one in series for log in one.logs}.values())
    doubts = [*_one_machine(logs), *_unlike(logs)]
    modes = sorted({log.mode for log in logs if log.mode and log.world > 1})
    if len(modes) > 1:
        doubts.append(f"{' and '.join(modes)} scaling are mixed here; study each in its own folder.")
    notes = [_MODES[modes[0]]] if len(modes) == 1 else []
    return doubts, [*notes, *filter(None, map(_rates, series))]


def _one_machine(logs: Sequence[Log]) -> list[str]:
    """Workers on one CPU share its hardware, unlike workers with a GPU each."""
    cpu_logs = [log for log in logs if log.machine is not None and not log.machine.get("gpus")]
    if not any(log.world > 1 for log in cpu_logs):
        return []
    cores = max(cpu_cores(log) or 0 for log in cpu_logs)
    note = (
        f"All workers shared one machine of {cores} cores, and its memory bandwidth and caches, which more processes "
        "don't make more of."
    )
    used = {log.world: log.world * number_in(str((log.machine or {}).get("threads"))) for log in cpu_logs}
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
                by_value.setdefault(str((log.machine or {}).get(name)), set()).add(log.world)
        if len(by_value) > 1:
            each = ", ".join(
                f"{value} with {', '.join(map(str, sorted(worlds)))}" for value, worlds in by_value.items()
            )
            sentences.append(
                f"train.{name} was not the same in all runs ({each} workers), which changes their speed; "
                "set it in the YAML."
            )
    devices = sorted({str((log.machine or {}).get("device")) for log in logs if log.machine is not None})
    if len(devices) > 1:
        sentences.append(f"The runs were on unlike devices ({', '.join(devices)}), which can't be compared.")
    return sentences


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
