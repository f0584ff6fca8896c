"""How the device computes: the choice of convolution algorithms, the precision, and single images."""

from __future__ import annotations

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record

FIXED = 0.8
"""Share of the calls that have the commonest shape: the last batch of a pass may be smaller."""
SHAPES = 3
"""As many shapes in turn are searched once each."""
IMAGE = 512 * 512
"""Pixels up to which one image is too little work for a GPU."""


def find(record: Record) -> list[Finding]:
    """small-batch of one image; for a GPU deterministic, cudnn-benchmark-off (inputs of one shape) and no-autocast."""
    if not record.cuda:
        return _single(record)
    return _single(record) + _benchmark(record) + _precision(record)


def _single(record: Record) -> list[Finding]:
    """2-D images that come one by one, where no GPU was asked whether more of them take longer."""
    shapes = record.listed_dict("shapes")
    if "cuda" in record.devices or not shapes:
        return []
    shape = max(shapes, key=lambda name: shapes[name])
    sides = [int(side) for side in shape.split("x")]
    if len(sides) != 4 or sides[0] > 1 or sides[2] * sides[3] > IMAGE:
        return []
    loaders = record.training_loaders
    return [
        Finding(
            name="small-batch",
            title="the network sees one image at a time, which leaves most of a GPU idle",
            where=place(loaders[0]["site"] if loaders else record.root_site),
            cure="a batch of several images (and the learning rate with it)",
            evidence=f"{shapes[shape]} of {sum(shapes.values())} inputs are {shape}",
            level="note",
        )
    ]


def _benchmark(record: Record) -> list[Finding]:
    from hasten.study.script.findings.experiments import costs

    shapes = record.listed_dict("shapes")
    if not record.raw.get("convolutions") or not shapes:
        return []
    site = place(record.root_site) if record.root_site else ""
    if record.raw.get("cudnn_deterministic"):
        return [
            Finding(
                name="deterministic",
                title="cuDNN is kept to deterministic algorithms, which also leaves its search for the fastest out",
                where=site,
                cure="torch.backends.cudnn.deterministic = False and benchmark = True, unless every run must repeat "
                "(MONAI: set_determinism(None); Lightning: deterministic=False)",
            )
        ]
    usual = sorted(shapes.values(), reverse=True)[:SHAPES]
    if record.raw.get("cudnn_benchmark") or sum(usual) < FIXED * sum(shapes.values()):
        return []
    cost = costs(record).get("cudnn-benchmark")
    if cost is None and "cuda" in record.devices and "base_s" in (record.experiments.get("cudnn_benchmark") or {}):
        return []  # It was measured, and brings nothing here.
    shape = max(shapes, key=lambda name: shapes[name])
    return [
        Finding(
            name="cudnn-benchmark-off",
            title="cuDNN takes its algorithms by rules of thumb although the input's shape stays the same",
            where=site,
            cure="torch.backends.cudnn.benchmark = True",
            evidence=f"{shapes[shape]} of {sum(shapes.values())} inputs are {shape}",
            cost_s=cost,
            gain=None if cost is None else gain_of(cost, record.step_s),
        )
    ]


def _precision(record: Record) -> list[Finding]:
    """For a GPU that isn't here; one that is gets the experiment's word."""
    autocast = record.listed_dict("autocast")
    if "cuda" in record.devices or not autocast or any(autocast[kind] and kind for kind in autocast):
        return []
    return [
        Finding(
            name="no-autocast",
            title="forward and backward run in float32, where a GPU's tensor cores stay idle",
            where=place(record.root_site) if record.root_site else "",
            cure='with torch.autocast("cuda", dtype=torch.bfloat16): around the forward and the loss',
            level="note",  # Not measured: that GPU isn't here.
        )
    ]
