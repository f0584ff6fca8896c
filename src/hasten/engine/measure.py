"""Timing of precisions, memory formats and compilation with this network on this machine."""

from __future__ import annotations

import copy
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from hasten.cache.key import digest
from hasten.config.schema import TrainConfig
from hasten.engine.batch_size import release_memory
from hasten.engine.precision import autocast, tensor_cores
from hasten.engine.side_stream import SideStream
from hasten.engine.step import memory_format, shaped
from hasten.files import first_line
from hasten.nets.blocks import compile_blocks
from hasten.nets.build import Loss
from hasten.nets.cpu.kernels import cpu_kernels
from hasten.nets.random_state import random_state_kept
from hasten.nets.surgery.fuse import fused_norms
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.observe.compare import Comparison, compare
from hasten.observe.env import cpu_model
from hasten.observe.rundir import write_json

log = logging.getLogger(__name__)

_ROUNDS = (5, 12)
"""Minimum and maximum number of rounds; an interval needs at least five."""
_SHORT_RUN = 4000
"""A run of fewer passes is measured in the minimum of rounds: further ones would cost more time than a gain that these
don't show could save."""
MEASURE_S = 30.0
"""Seconds after which a measurement starts no further round."""
_LEAST = 0.03
"""Smallest gain that counts."""
_LEAST_BUSY = 0.25
"""Smallest gain that counts while other programs use the processor: smaller ones are lost in that noise."""
_HOPELESS = 1.5
"""A variant that takes this many times the fastest one's seconds is not timed again."""
_WARM_UP = 3
"""Passes before one is captured, so that libraries have made their handles and workspaces."""
_RULES = 7
"""Version of the measurement: raised when it changes, so that older results are ignored."""

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Trace = tuple[Tensor, Tensor]
"""() loss and () gradient norm of one pass."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Whether an accelerator is on, and why."""

    on: bool
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    precision: Precision
    channels_last: bool
    fused_kernels: bool = False
    """Whether Hasten's kernels run on a GPU (train.fused_kernels)."""

    def __str__(self) -> str:
        parts = (self.precision, "channels-last" * self.channels_last, "fused" * self.fused_kernels)
        return " ".join(part for part in parts if part)


def variant_of(train: TrainConfig) -> Variant:
    """The variant of a run whose precision and memory format are decided."""
    assert train.precision is not None
    assert train.channels_last is not None
    return Variant(
        precision=train.precision, channels_last=train.channels_last, fused_kernels=bool(train.fused_kernels)
    )


@dataclass(frozen=True, slots=True)
class VariantTimes:
    """Median seconds of one forward and backward pass per variant, fastest first."""

    seconds: dict[str, float]
    variant: Variant
    """The one with the largest gain over the first that was allowed, or that one where no gain is certain."""
    excluded: tuple[str, ...] = ()
    """Variants whose loss or gradient was not that of the first one."""
    others: float = 0.0
    """Cores that other programs used meanwhile, where that makes the times doubtful."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Input shape, loss and device for timing a network."""

    loss: Loss
    shape: tuple[int, int, int, int, int]
    """(B, C, D, H, W) of random voxels."""
    num_classes: int
    spatial_dims: int
    device: torch.device
    replay: bool = False
    """Time passes as CUDA graphs, as the step of the run will be one: launched one by one, the kernels of a small
    network would take the host longer than the device."""


def probe_batch_size(batch_size: int, device: torch.device) -> int:
    """Patches of a probe: a few, whose ratios are those of the whole batch, at a fraction of its time.

    Two on a GPU, where a single one may leave it waiting for launches; on a CPU one for each thread, as some of torch's
    operations divide a batch, and not a patch, among threads.
    """
    return min(batch_size, torch.get_num_threads() if device.type == "cpu" else 2)


def _pass(network: nn.Module, probe: Probe, variant: Variant) -> Callable[[], Trace]:
    """A call that runs forward and backward and returns loss and gradient norm, still on the device."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(probe.shape, generator=generator).to(probe.device)
    label = torch.randint(0, probe.num_classes, (probe.shape[0], 1, *probe.shape[2:]), generator=generator)
    label = (label if probe.spatial_dims == 3 else label[:, :, 0]).to(probe.device)
    layout = memory_format(probe.spatial_dims, variant.channels_last)

    def call() -> Trace:
        with tensor_cores(probe.device, variant.precision):
            with autocast(probe.device, variant.precision), gpu_forms(variant.fused_kernels and variant.channels_last):
                output = network(shaped(image, probe.spatial_dims, layout))
            value = probe.loss(output, label)
            value.backward()
        # A norm is part of every step that clips; here it also detects wrong gradients behind a correct loss.
        norm = nn.utils.get_total_norm([weight.grad for weight in network.parameters() if weight.grad is not None])
        network.zero_grad(set_to_none=True)
        return value.detach(), norm

    return call


def _replayed(calls: dict[str, Callable[[], Trace]], device: torch.device) -> dict[str, Callable[[], Trace]]:
    """Each call as a CUDA graph; the calls themselves where one of them can't be captured."""
    replays: dict[str, Callable[[], Trace]] = {}
    try:
        for name, call in calls.items():
            replays[name] = _graph_of(call, device)
    except RuntimeError as error:
        log.info("timed without CUDA graphs: %s", first_line(error))
        replays.clear()
        release_memory()
        return calls
    return replays


def _graph_of(call: Callable[[], Trace], device: torch.device) -> Callable[[], Trace]:
    side = SideStream(device)
    for _ in range(_WARM_UP):
        side.run(lambda: call()[0])
    graph, (loss, norm) = side.capture(call)

    def replay() -> Trace:
        graph.replay()
        return loss.clone(), norm.clone()

    return replay


def usual_variant(
    network: nn.Module, probe: Probe, reference: Variant, usual: Variant, *, steps: int, limit_s: float
) -> VariantTimes | None:
    """The variant that is usually the fastest on such a device, where a run is too short for measuring to pay.

    probe: of the run's whole batch. None where `steps` passes would take longer than `limit_s`, where loss or gradient
    are not those of `reference`, where a pass of `reference` is faster, and where memory is short.
    """
    seconds: list[float] = []
    traces: list[Trace] = []
    try:
        with random_state_kept(probe.device):
            for variant in (reference, usual):
                call = _pass(_copy(network, probe, variant), probe, variant)
                traces.append(call())  # libraries prepare themselves in the first pass
                float(traces[-1][0])
                begin = time.perf_counter()
                float(call()[0])
                seconds.append(time.perf_counter() - begin)
    except torch.OutOfMemoryError:
        release_memory()
        return None
    slower, once = seconds
    fits = steps * once <= limit_s and once <= slower and agrees(traces[1], traces[0])
    return VariantTimes({str(usual): once}, usual) if fits else None


def fastest_variant(
    network: nn.Module, probe: Probe, allowed: list[Variant], memory: Path, *, seconds: float = MEASURE_S,
    passes: float = math.inf,
) -> VariantTimes:  # fmt: skip
    """Time the allowed variants, forward and backward, interleaved, for about as many seconds at most.

    Where two rounds would take longer than that, the first variant is taken. passes: how many of them the run will
    make, in the size of the probe; a short run is measured in fewer rounds.

    A variant is excluded if, in any pass, its loss differs from that of the first one, the reference, by more than
    2 %, or its gradient norm by more than 20 %. One is chosen over the reference only if the whole interval of its gain
    says that it is faster, on a busy machine by a quarter at least. The result is cached in `memory` under the machine,
    the network and the shape, so that the next run measures nothing, unless other programs made it doubtful. The
    network and torch's random state are left as they were.
    """
    sizes = [str(tuple(parameter.shape)) for parameter in network.parameters()]
    names = [str(variant) for variant in allowed]
    # The repr of a network shows its strides, norms and activations; the sizes cover layers without such a repr.
    rounds = _ROUNDS if passes >= _SHORT_RUN else (_ROUNDS[0], _ROUNDS[0])
    compiled = probe.device.type == "cpu" and cpu_kernels().functions is not None
    key = [_RULES, machine(probe.device), repr(network), sizes, probe.shape, probe.num_classes, names, compiled]
    path = memory / f"variant-{digest(key)}.json"
    earlier = _read_measured(path, allowed, rounds[1])
    if earlier is not None:
        return earlier
    traces: dict[str, list[Trace]] = {name: [] for name in names}
    copies = {str(variant): _copy(network, probe, variant) for variant in allowed}
    calls = {str(variant): _pass(copies[str(variant)], probe, variant) for variant in allowed}
    if probe.replay:
        with random_state_kept(probe.device):
            calls = _replayed(calls, probe.device)
    if seconds < MEASURE_S:
        with random_state_kept(probe.device):
            if probe.device.type == "cuda":
                float(calls[names[0]]()[0])  # libraries are loaded in the first pass
            begin = time.perf_counter()
            float(calls[names[0]]()[0])
        once = time.perf_counter() - begin
        if 2 * len(calls) * once > seconds:
            return VariantTimes({names[0]: once}, allowed[0])
    timed = {name: lambda call=call, name=name: traces[name].append(call()) for name, call in calls.items()}
    with random_state_kept(probe.device):
        comparison = compared(
            timed, probe.device, base=names[0], seconds=seconds, hopeless=_HOPELESS, best_only=True, rounds=rounds
        )
    reference = traces[names[0]][0]
    sound = [name for name in names if name == names[0] or all(agrees(trace, reference) for trace in traces[name])]
    medians = dict(sorted(((name, comparison.median(name)) for name in sound), key=lambda item: item[1]))
    busy = doubtful(comparison, probe.device)
    least = _LEAST_BUSY if busy else _LEAST
    faster = [arm for arm in comparison.arms.values() if arm.arm in sound and arm.low > 1 + least]
    best = max(faster, key=lambda arm: arm.gain).arm if faster else names[0]
    variant = next(variant for variant in allowed if str(variant) == best)
    others = comparison.others if busy else 0.0
    measured = VariantTimes(medians, variant, tuple(name for name in names if name not in sound), others)
    if busy or len(comparison.seconds[best]) < _ROUNDS[0]:
        return measured
    try:
        memory.mkdir(parents=True, exist_ok=True)
        write_json(path, {**asdict(measured), "machine": machine(probe.device), "rounds": rounds[1]})
    except OSError as error:
        log.warning(
            "%s: what was measured can't be kept (%s); set cache.dir to a folder that can be written", path, error
        )
    return measured


def compared(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, base: str, seconds: float,
    hopeless: float = math.inf, best_only: bool = False, least: float = _LEAST, rounds: tuple[int, int] = _ROUNDS,
) -> Comparison:  # fmt: skip
    """Time calls in interleaved rounds, at least five, with a confidence interval and the load of the machine.

    Precision, memory format, compilation and kernels are decided this way.
    """
    sync = partial(torch.cuda.synchronize, device) if device.type == "cuda" else None
    return compare(
        calls,
        base=base,
        sync=sync,
        rounds=rounds,
        least=least,
        seconds=seconds,
        hopeless=hopeless,
        best_only=best_only,
        clock=time.perf_counter,
    )


def doubtful(comparison: Comparison, device: torch.device) -> bool:
    """Whether other programs used so much of the processor that times are unreliable."""
    return device.type == "cpu" and comparison.busy


def certainly_faster(comparison: Comparison, arm: str, device: torch.device, *, least: float = _LEAST) -> bool:
    """Whether the arm is faster than the base by enough rounds on an idle enough machine."""
    enough = len(comparison.seconds[arm]) >= _ROUNDS[0]
    return enough and comparison.arms[arm].low > 1 + least and not doubtful(comparison, device)


def _read_measured(path: Path, allowed: list[Variant], rounds: int) -> VariantTimes | None:
    """The measurement of an earlier run; None without one of as many rounds at most, or if the file is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        seconds = {str(name): float(value) for name, value in content["seconds"].items()}
        measured = VariantTimes(seconds, Variant(**content["variant"]), tuple(content["excluded"]))
        if measured.variant not in allowed or not seconds:
            raise ValueError("names no variant that is allowed")
        if content["rounds"] < rounds:
            return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: can't be used (%s) and is measured again", path, error)
        return None
    return measured


def faster_compiled(
    network: nn.Module, probe: Probe, variant: Variant, *, always: bool, blocks: bool = False
) -> tuple[nn.Module, Switch]:
    """`network` compiled, if that works and is certainly 3 % faster (or `always`); else the network itself, and why.

    blocks: the network's repeated blocks are compiled, in place, and not the whole.
    """
    network_copy = _copy(network, probe, variant)
    begin = time.perf_counter()
    with random_state_kept(probe.device):
        try:
            compiled = _compiled(_copy(network, probe, variant), blocks=blocks)
            # The compiler does its own fusion in place of Hasten's kernels.
            plain = replace(variant, fused_kernels=False)
            calls = {"eager": _pass(network_copy, probe, variant), "compiled": _pass(compiled, probe, plain)}
            if probe.replay:
                calls = _replayed(calls, probe.device)
            traces = {name: call() for name, call in calls.items()}
        except Exception as error:
            log.warning("the network runs uncompiled: %s", first_line(error))
            return network, Switch(False, f"torch.compile failed: {first_line(error)}")
        compile_s = time.perf_counter() - begin
        comparison = compared(calls, probe.device, base="eager", seconds=MEASURE_S)
    eager, fused = (1e3 * comparison.median(name) for name in ("eager", "compiled"))
    gain = comparison.arms["compiled"]
    figures = f"{fused:.0f} ms against {eager:.0f} ms eager ({gain}), compiled in {compile_s:.0f} s"
    if not agrees(traces["compiled"], traces["eager"]):
        compiled_trace, eager_trace = (
            "loss {:.4g} and gradient norm {:.4g}".format(*traces[name]) for name in ("compiled", "eager")
        )
        return network, Switch(False, f"compiled it gives {compiled_trace}, eager {eager_trace}")
    certain = certainly_faster(comparison, "compiled", probe.device)
    if not always and not certain:
        return network, Switch(False, f"not certainly faster: {figures}")
    return _compiled(network, blocks=blocks), Switch(True, figures)


def _compiled(network: nn.Module, *, blocks: bool) -> nn.Module:
    if not blocks:
        return torch.compile(network, dynamic=False)  # type: ignore[return-value]
    if not compile_blocks(network):
        raise ValueError("the network repeats no block; leave out train.compile_blocks")
    return network


def _copy(network: nn.Module, probe: Probe, variant: Variant) -> nn.Module:
    """A copy in the variant's memory format, so that timing leaves no trace (running statistics, gradients).

    It is in training mode but without dropout, whose draws would drown what is compared.
    """
    layout = memory_format(probe.spatial_dims, variant.channels_last)
    network_copy = copy.deepcopy(network).to(memory_format=layout).train()  # type: ignore[call-overload]
    fused_norms(network_copy, variant.fused_kernels)
    for module in network_copy.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    return network_copy


def agrees(trace: Trace, reference: Trace) -> bool:
    """Whether loss and gradient norm are the reference's, within what a shorter float may change. NaN never agrees."""
    (loss, norm), (true_loss, true_norm) = trace, reference
    same_loss = (loss - true_loss).abs() <= 0.02 * true_loss.abs() + 1e-3
    same_norm = (norm - true_norm).abs() <= 0.2 * true_norm + 1e-6
    return bool(same_loss & same_norm)


def machine(device: torch.device) -> list[str | int]:
    """What a measurement is valid for: the name of the CPU or GPU, torch's version and number of threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    return [name, torch.__version__, torch.get_num_threads()]


def explain(measured: VariantTimes) -> str:
    """One sentence for the report."""
    chosen, first = str(measured.variant), next(iter(measured.seconds))
    what = f"{chosen} was fastest" if chosen == first else f"nothing was certainly faster than {chosen}"
    ranked = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in measured.seconds.items())
    busy = f"; other programs used {measured.others:.1f} cores meanwhile, so that this holds for this run alone"
    ranked += busy if measured.others else ""
    out = f"; out for another loss or gradient: {', '.join(measured.excluded)}" if measured.excluded else ""
    return f"{what}; measured here, forward and backward of a small batch: {ranked}{out}"
