"""What stops the training between its steps: validation and checkpoints."""

from __future__ import annotations

import statistics

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.words import place
from hasten.study.script.records import WARMUP, Record
from hasten.study.words import ms

VALIDATING = 0.30
"""Share of the time from which validation is too much; the cure aims at a fifth of it."""
SAVING = 0.10
"""Share of the time from which checkpoints stall the training."""


def find(record: Record) -> list[Finding]:
    """validation-share and checkpoint-stall, over the steps that were watched."""
    return _validation(record) + _checkpoints(record)


def _validation(record: Record) -> list[Finding]:
    cost, step_s = record.part("validation"), record.step_s
    validations = [each for each in record.listed("validations") if each["step"] >= WARMUP]
    if not validations or cost < VALIDATING * step_s:
        return []
    seconds = statistics.fmean(each["seconds"] for each in validations)
    return [
        Finding(
            name="validation-share",
            title="validation takes a large part of the time",
            where=place(validations[-1]["site"]) if validations[-1]["site"] else "",
            cure="validate a fifth as often, on fewer cases until the end, and under torch.inference_mode()",
            evidence=f"{len(validations)} of {ms(seconds)} in {record.steps} steps: {cost / step_s:.0%} of the time",
            cost_s=cost,
            gain=gain_of(0.8 * cost, step_s),
        )
    ]


def _checkpoints(record: Record) -> list[Finding]:
    saves = [each for each in record.listed("saves") if each["step"] >= WARMUP]
    measured = len(record.measured)
    if not saves or not measured:
        return []
    # The first save of a process imports what it needs: the usual one counts.
    usual = statistics.median(each["seconds"] for each in saves)
    cost = usual * len(saves) / measured
    if cost < SAVING * record.step_s:
        return []
    return [
        Finding(
            name="checkpoint-stall",
            title="the training stands still while checkpoints are written",
            where=place(saves[-1]["site"]) if saves[-1]["site"] else "",
            cure="save less often, or copy the state to the host and write it from a thread",
            evidence=f"{len(saves)} saves of {ms(usual)} in {measured} steps",
            cost_s=cost,
            gain=gain_of(cost, record.step_s),
        )
    ]
