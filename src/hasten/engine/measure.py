"""Switches that are turned on by a measurement on this machine, with this network, and the record of it."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import nn

from hasten.cache.key import digest
from hasten.engine.step import autocast, memory_format, shaped
from hasten.nets.build import Loss
from hasten.observe.rundir import write_json

log = logging.getLogger(__name__)

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Engaged:
    """Whether an accelerator is on, and why."""

    on: bool
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    precision: str
    channels_last: bool

    def __str__(self) -> str:
        return f"{self.precision}{' channels-last' if self.channels_last else ''}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds of one forward and backward pass per variant, fastest first."""

    seconds: dict[str, float]
    variant: Variant


def interleave(calls: dict[str, Callable[[], object]], *, rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of every call, A B C A B C ..., after one unmeasured round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number:
                found[name].append(time.perf_counter() - begin)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What a network is timed on."""

    loss: Loss
    shape: tuple[int, int, int, int, int]
    """(B, C, D, H, W) of random voxels."""
    num_classes: int
    spatial_dims: int
    device: torch.device


def _pass(network: nn.Module, probe: Probe, variant: Variant) -> Callable[[], torch.Tensor]:
    """A call that runs forward and backward and returns the loss, still on the device."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(probe.shape, generator=generator).to(probe.device)
    label = torch.randint(0, probe.num_classes, (probe.shape[0], 1, *probe.shape[2:]), generator=generator)
    label = (label if probe.spatial_dims == 3 else label[:, :, 0]).to(probe.device)
    layout = memory_format(probe.spatial_dims, variant.channels_last)

    def call() -> torch.Tensor:
        with autocast(probe.device, variant.precision):
            output = network(shaped(image, probe.spatial_dims, layout))
        value = probe.loss(output, label)
        value.backward()
        network.zero_grad(set_to_none=True)
        return value.detach()

    return call


def fastest_variant(network: nn.Module, probe: Probe, allowed: list[Variant], memory: Path) -> Measured:
    """Time the allowed variants, forward and backward, interleaved.

    A variant whose loss differs from that of the first one, the reference, by more than 2 % is out. The result is kept in
    `memory` under the machine, the network and the shape, so that the next run asks nothing. The network is left as it was.
    """
    sizes = [str(tuple(parameter.shape)) for parameter in network.parameters()]
    names = [str(variant) for variant in allowed]
    kept = (
        memory / f"variant-{digest([_machine(probe.device), type(network).__name__, sizes, probe.shape, names])}.json"
    )
    if kept.is_file():
        try:
            content = json.loads(kept.read_text())
            return Measured(content["seconds"], Variant(**content["variant"]))
        except (ValueError, KeyError, TypeError):
            log.warning("%s: unreadable, measured again", kept)
    copies = {str(variant): _copy(network, probe, variant) for variant in allowed}
    calls = {str(variant): _pass(copies[str(variant)], probe, variant) for variant in allowed}
    losses = {name: call() for name, call in calls.items()}
    times = interleave(calls, rounds=_ROUNDS, device=probe.device)
    agreeing = {name: median(found) for name, found in times.items() if _agrees(losses[name], losses[names[0]])}
    seconds = dict(sorted(agreeing.items(), key=lambda item: item[1]))
    best = next(variant for variant in allowed if str(variant) == next(iter(seconds)))
    memory.mkdir(parents=True, exist_ok=True)
    write_json(kept, {"seconds": seconds, "variant": asdict(best), "machine": _machine(probe.device)})
    return Measured(seconds, best)


def faster_compiled(network: nn.Module, probe: Probe, variant: Variant, *, always: bool) -> tuple[nn.Module, Engaged]:
    """`network` compiled, if that works and is at least 3 % faster (or `always`); else the network itself, and why."""
    twin = _copy(network, probe, variant)
    compiled = torch.compile(twin, dynamic=False)
    begin = time.perf_counter()
    calls = {"eager": _pass(twin, probe, variant), "compiled": _pass(compiled, probe, variant)}  # type: ignore[arg-type]
    try:
        losses = {name: call() for name, call in calls.items()}
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        log.warning("the network runs uncompiled: %s", reason)
        return network, Engaged(False, f"torch.compile failed: {reason}")
    spent = time.perf_counter() - begin
    times = {name: median(found) for name, found in interleave(calls, rounds=5, device=probe.device).items()}
    told = f"{1e3 * times['compiled']:.0f} ms against {1e3 * times['eager']:.0f} ms eager, compiled in {spent:.0f} s"
    if not _agrees(losses["compiled"], losses["eager"]):
        return network, Engaged(False, f"the compiled loss {losses['compiled']:.4g} is not {losses['eager']:.4g}")
    if not always and times["compiled"] > 0.97 * times["eager"]:
        return network, Engaged(False, f"not faster: {told}")
    return torch.compile(network, dynamic=False), Engaged(True, told)  # type: ignore[return-value]


def _copy(network: nn.Module, probe: Probe, variant: Variant) -> nn.Module:
    """A copy in the variant's memory format, so that timing leaves no trace (running statistics, gradients)."""
    layout = memory_format(probe.spatial_dims, variant.channels_last)
    return copy.deepcopy(network).to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def _agrees(value: torch.Tensor, reference: torch.Tensor) -> bool:
    return bool((value - reference).abs() <= 0.02 * reference.abs() + 1e-3)


def _machine(device: torch.device) -> list[str | int]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu()
    return [name, torch.__version__, torch.get_num_threads()]


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "cpu"


def explain(measured: Measured, what: str) -> str:
    """One sentence of evidence for the report."""
    ranked = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in measured.seconds.items())
    return f"{what}; measured here, forward and backward of a small batch: {ranked}"
