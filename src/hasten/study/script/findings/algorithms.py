"""How the device computes: the choice of convolution algorithms, the precision, and single images."""

from __future__ import annotations

from collections.abc import Iterator

from hasten.study.finding import Finding
from hasten.study.script.findings.experiments import costs
from hasten.study.script.records import Record

FIXED = 0.8
"""Share of the calls that have the commonest shape: the last batch of a pass may be smaller."""
SHAPES = 3
"""As many shapes in turn are searched once each."""
IMAGE = 512 * 512
"""Pixels up to which one image is too little work for a GPU."""


def find(record: Record) -> list[Finding]:
    """small-batch of one image; for a GPU deterministic, cudnn-benchmark-off (inputs of one shape) and no-autocast."""
    shapes = record.listed_dict("shapes")
    if not shapes:
        return list(_precision(record))
    shape = max(shapes, key=lambda name: shapes[name])
    evidence = f"{shapes[shape]} of {sum(shapes.values())} inputs are {shape}"
    return [*_single(record, shape, evidence), *_benchmark(record, shapes, evidence), *_precision(record)]


def _single(record: Record, shape: str, evidence: str) -> Iterator[Finding]:
    """2-D images that come one by one, where no GPU was asked whether more of them take longer."""
    sides = [int(side) for side in shape.split("x")]
    if not record.on_gpu and len(sides) == 4 and sides[0] == 1 and sides[2] * sides[3] <= IMAGE:
        yield record.finding(
            "small-batch",
            record.loader_site,
            "the network sees one image at a time, which leaves most of a GPU idle",
            "a batch of several images (and the learning rate with it)",
            evidence=evidence,
            level="note",
        )


def _benchmark(record: Record, shapes: dict[str, int], evidence: str) -> Iterator[Finding]:
    if not record.cuda or not record.raw.get("convolutions"):
        return
    if record.raw.get("cudnn_deterministic"):
        yield record.finding(
            "deterministic",
            record.root_site,
            "cuDNN is kept to deterministic algorithms, which also leaves its search for the fastest out",
            "torch.backends.cudnn.deterministic = False and benchmark = True, unless every run must repeat "
            "(MONAI: set_determinism(None); Lightning: deterministic=False)",
        )
        return
    usual = sorted(shapes.values(), reverse=True)[:SHAPES]
    cost = costs(record.experiments).get("cudnn-benchmark")
    # A GPU that was measured without a gain has none.
    idle = cost is None and record.on_gpu and "base_s" in (record.experiments.get("cudnn_benchmark") or {})
    if not record.raw.get("cudnn_benchmark") and sum(usual) >= FIXED * sum(shapes.values()) and not idle:
        yield record.finding(
            "cudnn-benchmark-off",
            record.root_site,
            "cuDNN takes its algorithms by rules of thumb although the input's shape stays the same",
            "torch.backends.cudnn.benchmark = True",
            evidence=evidence,
            cost_s=cost,
        )


def _precision(record: Record) -> Iterator[Finding]:
    """For a GPU that isn't here, so a note; one that is gets the experiment's word."""
    autocast = record.listed_dict("autocast")
    if record.cuda and not record.on_gpu and autocast and not any(kind and count for kind, count in autocast.items()):
        yield record.finding(
            "no-autocast",
            record.root_site,
            "forward and backward run in float32, where a GPU's tensor cores stay idle",
            'with torch.autocast("cuda", dtype=torch.bfloat16): around the forward and the loss',
            level="note",
        )
