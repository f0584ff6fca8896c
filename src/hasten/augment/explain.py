"""Text tables that say how each transform of a chain runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from hasten.augment.chain import Chain, Fixed, PerSample, Warp, stages_of
from hasten.augment.lower import Context, name_of
from hasten.augment.maps import MapOp
from hasten.augment.steps import CACHED, FUSED, LoweredChain
from hasten.config.schema import Triple

_LONG: Triple = (4096, 4096, 4096)
"""A size that fits any operation, where the true one is known with the data only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedTransform:
    """How one transform runs."""

    name: str
    how: str
    """`cached`, `fused`, `per-sample` or `off`."""
    why: str
    ops: tuple[str, ...]
    """Hasten's operations in place of it, with their arguments."""


def explained(plan: LoweredChain, chain: Chain) -> tuple[ExplainedTransform, ...]:
    """A row for each transform."""
    together = _together(plan, chain)
    rows = []
    for number, step in enumerate(plan.steps, 1):
        why = "; ".join(part for part in (step.why, together.get(number, "")) if part)
        ops = () if step.how == CACHED else tuple(described(op) for op in step.ops if not isinstance(op, PerSample))
        off = bool(step.ops) and all(getattr(op, "prob", 1.0) == 0 for op in step.ops)
        how, why = ("off", "its probability is 0") if off else (step.how, why or "on whole batches")
        title = step.transform.name if isinstance(step.transform, Fixed) else name_of(step.transform)
        rows.append(ExplainedTransform(name=title, how=how, why=why, ops=ops))
    return tuple(rows)


def rows_table(rows: Sequence[ExplainedTransform]) -> str:
    """Number, name, how it runs, why; below it Hasten's operation, `=`."""
    lines = _aligned(
        [("", "transform", "runs", "why"), *((str(at), row.name, row.how, row.why) for at, row in enumerate(rows, 1))]
    )
    output = [lines[0]]
    for line, row in zip(lines[1:], rows, strict=True):
        output += [line, *(f"     = {op}" for op in row.ops)]
    return "\n".join(output)


def explain_table(plan: LoweredChain, chain: Chain, context: Context) -> str:
    """`rows_table`, and what a batch holds."""
    labels = ", ".join(context.label_keys) or "none"
    return f"{rows_table(explained(plan, chain))}\n\nbatch: {', '.join(context.keys)} (classes: {labels})"


def described(op: Any) -> str:
    """An operation with the arguments that are not the default."""
    if isinstance(op, Fixed):
        keys = ", ".join(f'"{key}"' for key in op.keys)
        return f"{op.name}({keys})"
    assert is_dataclass(op)
    shown = []
    for field in fields(op):
        value = getattr(op, field.name)
        if field.default is MISSING or value != field.default or field.name in ("keys", "prob"):
            shown.append(f"{field.name}={_short(value)}")
    return f"{type(op).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"
    if isinstance(value, tuple):
        inner = ", ".join(_short(each) for each in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _together(plan: LoweredChain, chain: Chain) -> dict[int, str]:
    """A note for each step, by its number: the other steps that share its interpolation."""
    owner = {position: number for number, step in enumerate(plan.steps, 1) for position in step.positions}
    crop = next(
        (number for number, step in enumerate(plan.steps, 1) if step.how == FUSED and plan.crop in step.ops), None
    ) if plan.crop is not None else None  # fmt: skip
    size = plan.crop.size if plan.crop is not None else _LONG
    try:
        stages = stages_of(chain, size)
    except ValueError:
        return {}
    notes: dict[int, str] = {}
    for at, stage in enumerate(stages):
        if not isinstance(stage, Warp):
            continue
        positions = {placed.position for reading in stage.readings.values() for placed in reading.ops}
        members = {owner[position] for position in positions} | ({crop} if crop and at == 0 else set())
        for number in sorted(members):
            others = sorted(members - {number})
            if others:
                notes[number] = f"one interpolation with {', '.join(map(str, others))}"
            elif any(isinstance(op, MapOp) for op in plan.steps[number - 1].ops):
                notes[number] = "a separate interpolation"
    return notes


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with aligned columns: the first to the right, the last of any length."""
    first, *others = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    aligned = []
    for row in rows:
        middle = [cell.ljust(width) for cell, width in zip(row[1:-1], others, strict=True)]
        aligned.append("  ".join([row[0].rjust(first), *middle, row[-1]]).rstrip())
    return aligned
