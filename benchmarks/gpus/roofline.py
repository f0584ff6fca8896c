"""Bytes and operations of each part of a training step, counted, and the step time that they predict on four cards.

`python -m benchmarks.gpus.roofline` prints the table; nothing is run, so that it needs no GPU. A part takes the longer
of its operations over the card's rate and its bytes over the card's bandwidth, and the parts follow one another.

Counted are tensors in bf16 as they pass through device memory, each pass once: a convolution reads its input and writes
its output forward, and reads and writes four such tensors backward; a norm with its activation as one kernel reads its
input twice and writes once forward, and reads two tensors twice and writes one backward; a concatenation or a sum reads
and writes both ways; the loss reads the logits twice and writes their gradient; the optimizer reads and writes float32
weights, momentum and average, and reads the gradient.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.gpus.nets import NETS, Net, build
from hasten.observe.rundir import write_json

BF16, FP32 = 2, 4
PARTS = ("convolutions", "norms", "joins", "loss", "optimizer")


@dataclass(frozen=True, slots=True)
class Card:
    """Data-sheet figures of one GPU."""

    tflops: float
    """Dense bf16."""
    tb_per_s: float


CARDS = {
    "A100": Card(312, 2.04), "H100": Card(989, 3.35), "H200": Card(989, 4.8), "B200": Card(2250, 8.0),
}  # fmt: skip
PRODUCT_SHARE, COPY_SHARE = 0.80, 0.82
"""Of the data sheet that a large matrix product and a copy reach: measured on an H100, assumed on the others."""
CONVOLUTION_SHARES = ((320, 0.60), (256, 0.60), (128, 0.50), (64, 0.35), (0, 0.24))
"""Share of a product's rate that a convolution of at least so many channels reaches. The last is measured on an H100
(32 channels at 128^3, channels-last, forward and backward); the others are assumed."""


@dataclass(slots=True)
class Cost:
    """Of one patch, forward and backward."""

    teraflop: float = 0.0
    """Of matrix units, divided by the share of their rate that they reach."""
    gigabytes: float = 0.0
    own_teraflop: float = 0.0
    """The same without that division."""

    def add(self, operations: float, share: float, size: float) -> None:
        self.own_teraflop += operations / 1e12
        self.teraflop += operations / share / 1e12
        self.gigabytes += size / 1e9

    def seconds(self, card: Card) -> float:
        rate, bandwidth = PRODUCT_SHARE * card.tflops, 1e3 * COPY_SHARE * card.tb_per_s
        return max(self.teraflop / rate, self.gigabytes / bandwidth)


class _Joins(TorchFunctionMode):
    """Concatenations, and sums of whole maps."""

    def __init__(self, cost: Cost) -> None:
        super().__init__()
        self.cost = cost

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("cat", "add", "__add__", "__iadd__") and output.ndim > 3:
            passes = 4 if func.__name__ == "cat" else 3
            self.cost.add(0, 1, passes * output.numel() * BF16)
        return output


def costs_of(net: Net) -> dict[str, Cost]:
    """Of each part of a step, for one patch; the optimizer's is that of the whole step."""
    network = build(net, torch.device("cpu")).to("meta")
    costs: dict[str, Cost] = {name: Cost() for name in PARTS}

    def convolution(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        image, weight = given[0], module.weight
        # A transposed one has its input's voxels, an ordinary one its output's.
        voxels = (image if isinstance(module, nn.ConvTranspose3d) else output)[0, 0].numel()
        operations = 3 * 2 * voxels * weight.numel()
        size = 3 * (image.numel() + output.numel()) * BF16
        costs["convolutions"].add(operations, _share(min(weight.shape[:2])), size)

    def norm(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        costs["norms"].add(0, 1, 8 * output.numel() * BF16)

    for module in network.modules():
        if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
            module.register_forward_hook(convolution)
        elif isinstance(module, nn.InstanceNorm3d | nn.GroupNorm | nn.BatchNorm3d):
            module.register_forward_hook(norm)
    image = torch.empty(1, 1, net.side, net.side, net.side, device="meta")
    with _Joins(costs["joins"]):
        scores = network(image)
    costs["loss"].add(0, 1, 3 * scores.numel() * BF16)
    weights = sum(parameter.numel() for parameter in network.parameters())
    costs["optimizer"].add(0, 1, 7 * weights * FP32)
    return costs


def _share(channels: int) -> float:
    return next(share for least, share in CONVOLUTION_SHARES if channels >= least)


def predicted(net: Net, card: Card) -> dict[str, float]:
    """Milliseconds of each part of a step of `net.batch` patches, of all, and patches a second."""
    result: dict[str, float] = defaultdict(float)
    for name, cost in costs_of(net).items():
        result[name] = 1e3 * cost.seconds(card) * (1 if name == "optimizer" else net.batch)
    result["step"] = sum(result.values())
    result["patches/s"] = 1e3 * net.batch / result["step"]
    return dict(result)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", type=Path, help="write counts and predictions here")
    given = parser.parse_args(argv)
    tree: dict[str, Any] = {}
    for name, net in NETS.items():
        costs = costs_of(net)
        tree[name] = {"batch": net.batch, "side": net.side, "per patch": {k: asdict(v) for k, v in costs.items()}}
        print(f"\n{name}: {net.about}; {net.batch} patches")
        print(f"{'part':14}{'TFLOP/patch':>12}{'GB/patch':>10}" + "".join(f"{card + ' ms':>10}" for card in CARDS))
        times = {card: predicted(net, CARDS[card]) for card in CARDS}
        for part, cost in costs.items():
            row = "".join(f"{times[card][part]:10.2f}" for card in CARDS)
            print(f"{part:14}{cost.own_teraflop:12.3f}{cost.gigabytes:10.3f}{row}")
        for part in ("step", "patches/s"):
            print(f"{part:36}" + "".join(f"{times[card][part]:10.1f}" for card in CARDS))
        tree[name]["predicted"] = times
    if given.json is not None:
        write_json(given.json, tree)


if __name__ == "__main__":
    main()
