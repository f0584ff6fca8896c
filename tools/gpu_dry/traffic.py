"""What kernels move: of a module that inductor wrote, read from its text; and the budget of what they may."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

_BUDGET = Path(__file__).with_name("budget.json")
_LARGE = 1 << 20
"""Bytes from which on a buffer counts as a volume."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one rendered batch."""

    launches: int
    """Kernels that are started, those of torch's libraries among them."""
    volumes: int
    """Of these, kernels that read or write something as large as a volume."""
    batches: float
    """Bytes that kernels read and write of what kernels made, over the bytes of the finished batch."""


def traffic_of(source: str) -> Traffic:
    """Read from the wrapper's code: which buffers it makes, and which each kernel is given."""
    call = source[source.index("def call(") :]
    sizes: dict[str, int] = {}
    launches = volumes = moved = 0
    for line in call.splitlines():
        line = line.strip()
        if made := re.match(r"(\w+) = empty_strided_cuda\((\(.*?\)), \(.*?\), torch\.(\w+)\)", line):
            sizes[made[1]] = _bytes(made[2], made[3])
        elif again := re.match(r"(\w+) = (?:reinterpret_tensor\()?(buf\d+)[;,]", line):
            sizes.setdefault(again[1], sizes.get(again[2], 0))
        elif stated := re.match(r"assert_size_stride\((buf\d+), (\(.*?\)),", line):
            sizes.setdefault(stated[1], _bytes(stated[2], "float32"))
        if run := re.match(r"(?:buf\d+ = )?(triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.[\w.]+)\((.*)", line):
            each = [sizes.get(name, 0) for name in re.findall(r"\bbuf\d+\b", run[2])]
            # What is changed in place is read and written.
            each += [sizes.get(name, 0) for name in _in_place(source, run[1], run[2])]
            launches, moved = launches + 1, moved + sum(each)
            volumes += any(size >= _LARGE for size in each)
    result = re.search(r"return \((.*)\)", call)
    assert result is not None
    whole = sum(sizes.get(name, 0) for name in re.findall(r"\bbuf\d+\b", result[1]))
    return Traffic(launches, volumes, round(moved / whole, 1))


def _bytes(shape: str, dtype: str) -> int:
    sides = [int(side) for side in re.findall(r"\d+", shape)]
    return math.prod(sides) * getattr(torch, dtype).itemsize


def _in_place(source: str, call: str, arguments: str) -> list[str]:
    """The arguments of a kernel that it both reads and writes."""
    name = call.removesuffix(".run")
    signature = re.search(rf"def {re.escape(name)}\((.*?)\):", source)
    if signature is None:
        return []
    parameters = [each.strip() for each in signature[1].split(",")]
    given = [each.strip() for each in arguments.split(",")]
    return [value for one, value in zip(parameters, given, strict=False) if one.startswith("in_out_ptr")]


def over_budget(result: Traffic, allowed: dict[str, float]) -> list[str]:
    """What is above it, in words."""
    values = {name: getattr(result, name) for name in allowed}
    return [f"{name}: {values[name]} above {limit}" for name, limit in allowed.items() if values[name] > limit]


def read_budget(part: str) -> dict[str, dict[str, float]]:
    """Of each chain, by the names of `Traffic`. part: `compiled` or `fused`."""
    budget: dict[str, dict[str, float]] = json.loads(_BUDGET.read_text(encoding="utf-8"))[part]
    return budget


def write_budget(part: str, counts: Mapping[str, Traffic]) -> None:
    """Make these counts the budget of this part."""
    budget = json.loads(_BUDGET.read_text(encoding="utf-8"))
    budget[part] = {name: asdict(each) for name, each in counts.items()}
    _BUDGET.write_text(json.dumps(budget, indent=2) + "\n", encoding="utf-8")
