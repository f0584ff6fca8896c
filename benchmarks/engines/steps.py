"""A step on a fixed batch: plain eager PyTorch in float32 against the step that Hasten settles on here.

Same network (MONAI's, from the same seed), same batch, AdamW. `plain` is the loop of the tutorials: MONAI's DiceCELoss,
`torch.optim.AdamW` as it is made by default, nothing else. `hasten` is surgery, the variant (precision, memory format)
that is measured fastest on this machine, the fused loss and optimizer, clipping and the weight average that a run has;
`compiled` is that with the network compiled, where a compiler works.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Net:
    """A network of the field and the batch it is trained on."""

    channels: tuple[int, ...]
    norm: str
    num_classes: int
    shape: tuple[int, int, int, int, int]


NETS = {
    "hippocampus": Net((16, 32, 64, 128), "instance", 3, (2, 1, 40, 56, 40)),
    "spleen": Net((16, 32, 64, 128, 256), "batch", 2, (1, 1, 96, 96, 96)),
}
"""`hippocampus`: the one of all benchmarks here; `spleen`: MONAI's spleen tutorial."""


def build(net: Net) -> Any:
    import torch
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    strides = (2,) * (len(net.channels) - 1)
    return UNet(
        spatial_dims=3, in_channels=1, out_channels=net.num_classes, channels=net.channels, strides=strides,
        num_res_units=2, norm=net.norm,
    )  # fmt: skip


def batch(net: Net) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    image = torch.randn(net.shape, generator=generator)
    return image, torch.randint(0, net.num_classes, net.shape, generator=generator).to(torch.uint8)


def plain_step(net: Net) -> Callable[[], float]:
    import torch
    from monai.losses import DiceCELoss

    network = build(net).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
    loss_function = DiceCELoss(include_background=False, to_onehot_y=True, softmax=True, batch=True)
    image, label = batch(net)

    def step() -> None:
        optimizer.zero_grad()
        loss_function(network(image), label).backward()
        optimizer.step()

    return _timed(step)


def hasten_steps(net: Net, *, compiled: bool) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """The arms `hasten` and, where it works, `compiled`; and what was settled on."""
    import torch

    from hasten.config.schema import LossConfig
    from hasten.nets.build import build_loss
    from hasten.nets.surgery.operate import operate
    from hasten.runtime.measure import Probe, fastest_variant
    from hasten.runtime.variant import Variant, explain

    network = build(net).train()
    operate(network)
    probe = Probe(loss=build_loss(LossConfig()), shape=net.shape, num_classes=net.num_classes, spatial_dims=3,
                  device=torch.device("cpu"))  # fmt: skip
    allowed = [Variant(precision=p, channels_last=last) for p in ("fp32", "bf16") for last in (False, True)]
    with tempfile.TemporaryDirectory() as memory:
        measured = fastest_variant(network, probe, allowed, Path(memory))
    results = {"settled on": str(measured.variant), "why": explain(measured)}
    arms = {"hasten": _hasten_step(net, network, measured.variant, compile=False)}
    if compiled:
        twin = build(net).train()
        operate(twin)
        begin = time.perf_counter()
        try:
            arms["compiled"] = _hasten_step(net, twin, measured.variant, compile=True)
            arms["compiled"]()
            results["compiled"] = f"first step after {time.perf_counter() - begin:.1f} s"
        except Exception as error:
            arms.pop("compiled", None)
            results["compiled"] = f"failed: {str(error).strip().splitlines()[0]}"
    return arms, results


def _hasten_step(net: Net, network: Any, variant: Any, *, compile: bool) -> Callable[[], float]:
    import torch

    from hasten.config.schema import LossConfig
    from hasten.nets.build import build_loss
    from hasten.optim.average import average_of
    from hasten.runtime.precision import memory_format
    from hasten.training.step import TrainStep
    from hasten.training.update import Update

    network.to(memory_format=memory_format(3, variant.channels_last))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True)
    step = TrainStep(
        network=torch.compile(network, dynamic=False) if compile else network, loss=build_loss(LossConfig()),
        update=Update(weights=network, optimizer=optimizer, average=average_of(network), clip_norm=12.0),
        precision=variant.precision, channels_last=variant.channels_last, device=torch.device("cpu"),
    )  # fmt: skip
    image, label = batch(net)
    return _timed(lambda: step(image, label, 0))


def _timed(step: Callable[[], object]) -> Callable[[], float]:
    """Milliseconds of a call."""

    def once() -> float:
        begin = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begin)

    return once


def step_times(rounds: int, *, compiled: bool) -> tuple[dict[str, list[float]], dict[str, dict[str, str]]]:
    """Milliseconds by "net/arm", the arms in turns; and what Hasten settled on for each network."""
    from benchmarks.harness import interleave
    from hasten.runtime.allocator import keep_freed_memory

    entries: dict[str, list[float]] = {}
    results = {}
    for name, net in NETS.items():
        # Before the setting that a run makes: it holds for the process, and `plain` has not got it.
        plain = plain_step(net)
        alone = interleave({"plain, as the C library comes": plain}, max(3, rounds // 2))
        keep_freed_memory()
        arms, results[name] = hasten_steps(net, compiled=compiled)
        times = alone | interleave({"plain": plain, **arms}, rounds, warmup=2)
        entries |= {f"{name}/{arm}_ms": values for arm, values in times.items()}
    return entries, results
