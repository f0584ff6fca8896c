"""The choice of convolution algorithms."""

from __future__ import annotations

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record

FIXED = 0.8
"""Share of the calls that have the commonest shape: the last batch of a pass may be smaller."""


def find(record: Record) -> list[Finding]:
    """cudnn-benchmark-off, where a GPU convolves inputs of one shape."""
    from hasten.study.script.findings.experiments import costs

    shapes = record.listed_dict("shapes")
    if not record.cuda or record.raw.get("cudnn_benchmark") or not record.raw.get("convolutions") or not shapes:
        return []
    if record.raw.get("cudnn_deterministic"):
        return []  # Asked for, and it excludes the search.
    shape = max(shapes, key=lambda name: shapes[name])
    if shapes[shape] < FIXED * sum(shapes.values()):
        return []
    cost = costs(record).get("cudnn-benchmark")
    if cost is None and "cuda" in record.devices and "base_s" in (record.experiments.get("cudnn_benchmark") or {}):
        return []  # It was measured, and brings nothing here.
    return [
        Finding(
            name="cudnn-benchmark-off",
            title="cuDNN takes its algorithms by rules of thumb although the input's shape stays the same",
            where=place(record.root_site) if record.root_site else "",
            cure="torch.backends.cudnn.benchmark = True",
            evidence=f"{shapes[shape]} of {sum(shapes.values())} inputs are {shape}",
            cost_s=cost,
            gain=None if cost is None else gain_of(cost, record.step_s),
        )
    ]
