"""What stops the training between its steps: validation and checkpoints."""

from __future__ import annotations

import statistics

from hasten.study.finding import Finding
from hasten.study.rules import CHECKPOINTS, VALIDATION, part
from hasten.study.script.records import WARMUP, Record, place
from hasten.study.words import ms


def find(record: Record) -> list[Finding]:
    """validation-share and checkpoint-stall, over the steps that were watched."""
    return _validation(record) + _checkpoints(record)


def _validation(record: Record) -> list[Finding]:
    cost, step_s = record.part("validation"), record.step_s
    validations = [each for each in record.listed("validations") if each["step"] >= WARMUP]
    if not validations:
        return []
    seconds = statistics.fmean(each["seconds"] for each in validations)
    return part(
        cost, step_s, VALIDATION, saved_s=0.8 * cost, name="validation-share",
        title="validation takes a large part of the time",
        where=place(validations[-1]["site"]),
        cure="validate a fifth as often, on fewer cases until the end, and under torch.inference_mode()",
        evidence=f"{len(validations)} of {ms(seconds)} in {record.steps} steps: {cost / step_s:.0%} of the time",
    )  # fmt: skip


def _checkpoints(record: Record) -> list[Finding]:
    saves = [each for each in record.listed("saves") if each["step"] >= WARMUP]
    measured = len(record.measured)
    if not saves or not measured:
        return []
    # The first save of a process imports what it needs: the usual one counts.
    usual = statistics.median(each["seconds"] for each in saves)
    return part(
        usual * len(saves) / measured, record.step_s, CHECKPOINTS, name="checkpoint-stall",
        title="the training stands still while checkpoints are written",
        where=place(saves[-1]["site"]),
        cure="save less often, or copy the state to the host and write it from a thread",
        evidence=f"{len(saves)} saves of {ms(usual)} in {measured} steps",
    )  # fmt: skip
