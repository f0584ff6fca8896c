"""Text tables that say how each transform of a chain runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from hasten.augment.chain import Fixed, PerSample
from hasten.augment.lower import name_of
from hasten.augment.steps import CACHED, LoweredChain
from hasten.observe.values import aligned


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedTransform:
    """How one transform runs."""

    name: str
    how: str
    """`cached`, `fused`, `per-sample` or `off`."""
    why: str
    ops: tuple[str, ...]
    """Hasten's operations in place of it, with their arguments."""


def explained(plan: LoweredChain) -> tuple[ExplainedTransform, ...]:
    """A row for each transform."""
    rows = []
    for step in plan.steps:
        ops = () if step.how == CACHED else tuple(described(op) for op in step.ops if not isinstance(op, PerSample))
        off = bool(step.ops) and all(getattr(op, "prob", 1.0) == 0 for op in step.ops)
        how, why = ("off", "its probability is 0") if off else (step.how, step.why or "on whole batches")
        title = step.transform.name if isinstance(step.transform, Fixed) else name_of(step.transform)
        rows.append(ExplainedTransform(name=title, how=how, why=why, ops=ops))
    return tuple(rows)


def rows_table(rows: Sequence[ExplainedTransform]) -> str:
    """Number, name, how it runs, why; below it Hasten's operation, `=`."""
    named = ((str(at), row.name, row.how, row.why) for at, row in enumerate(rows, 1))
    lines = aligned([("", "transform", "runs", "why"), *named], right=(0,))
    output = [lines[0]]
    for line, row in zip(lines[1:], rows, strict=True):
        output += [line, *(f"     = {op}" for op in row.ops)]
    return "\n".join(output)


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
