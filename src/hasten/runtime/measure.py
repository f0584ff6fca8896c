"""Timing of precisions, memory formats and compilation with this network on this machine."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hasten.cache.key import digest
from hasten.config.decision import Accelerator, SetBy
from hasten.devices import device_name, kind_of
from hasten.files import first_line
from hasten.kernels.build_together import built_together
from hasten.kernels.use import triton_works
from hasten.nets.build import Loss
from hasten.nets.cpu.kernels import cpu_kernels
from hasten.nets.random_state import random_state_kept
from hasten.nets.surgery.fuse import fused_norms
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.observe.compare import Comparison, compare
from hasten.observe.cpu_load import BUSY, LoadMeter
from hasten.observe.env import cpu_model
from hasten.runtime.batch_size import release_memory
from hasten.runtime.core_follower import follow_cores
from hasten.runtime.device import synchronize
from hasten.runtime.out_of_memory import out_of_memory_ends_block
from hasten.runtime.precision import autocast, memory_format, tensor_cores, to_layout, to_memory_format
from hasten.runtime.variant import Variant, VariantTimes, keep, read_kept

log = logging.getLogger(__name__)

_ROUNDS = (5, 12)
"""Minimum and maximum number of rounds; an interval needs at least five."""
_SHORT_RUN = 4000
"""A run of fewer passes is measured in the fewest rounds: more of them would cost more time than they could save."""
MEASURE_S = 30.0
"""Seconds after which a measurement starts no further round."""
_LEAST = 0.03
"""Smallest gain that counts."""
_HOPELESS = 1.5
"""A variant that takes this many times the fastest one's seconds is not timed again."""
_RULES = 12
"""Version of the measurement: raised when it changes, so that older results are ignored."""

Trace = tuple[Tensor, Tensor]
"""() loss and () gradient norm of one pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Input shape, loss and device for timing a network."""

    loss: Loss
    shape: tuple[int, int, int, int, int]
    """(B, C, D, H, W) of random voxels."""
    num_classes: int
    spatial_dims: int
    device: torch.device
    batch_size: int = 0
    """Patches of a step of the run, where they are more than those of `shape`."""
    build_together: bool = False
    """Build Triton kernels together, by passes in which they do not run. Not of a user's own network, which may use
    as indices what they would have written."""


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
    sides = (probe.shape[0], 1, *probe.shape[2:])
    label = torch.randint(0, probe.num_classes, sides, generator=generator, dtype=torch.uint8)  # as prepared labels are
    label = (label if probe.spatial_dims == 3 else label[:, :, 0]).to(probe.device)
    layout = memory_format(probe.spatial_dims, variant.channels_last)

    def call() -> Trace:
        with tensor_cores(probe.device, variant.precision):
            with autocast(probe.device, variant.precision), gpu_forms(variant.channels_last and variant.fused_kernels):
                output = network(to_layout(image, probe.spatial_dims, layout))
            value = probe.loss(output, label)
            value.backward()
        # A norm is part of every step that clips; here it also detects wrong gradients behind a correct loss.
        norm = nn.utils.get_total_norm([weight.grad for weight in network.parameters() if weight.grad is not None])
        network.zero_grad(set_to_none=True)
        return value.detach(), norm

    return call


def _usual_variant(network: nn.Module, probe: Probe, allowed: list[Variant], left_s: float) -> VariantTimes | None:
    """The last allowed variant, if it computes what the first one does, and memory is not short.

    On an idle CPU the first one, if that is faster. On a GPU the first one, float32, takes several times as long
    wherever the last one is allowed, and a batch of it up to a second. left_s: after so many seconds no further pass is
    timed, once there is one.
    """
    on_cpu, meter, begun = probe.device.type == "cpu", LoadMeter(), time.perf_counter()
    # On a CPU a pass of a few patches takes their share of a batch.
    timed = probe if on_cpu else _whole_batch(probe)
    seconds: list[float] = []
    traces: list[Trace] = []
    try:
        with random_state_kept(probe.device):
            # A plan for a time limit relies on the shortest of the last one's passes.
            for variant, passes in {allowed[0]: int(on_cpu), allowed[-1]: 3}.items():
                copied = _copy(network, probe, variant)
                traces.append(_pass(copied, probe, variant)())  # libraries prepare themselves in the first pass
                float(traces[-1][0])
                call, times = _pass(copied, timed, variant), list[float]()
                while len(times) < passes and (not times or time.perf_counter() - begun < left_s):
                    begin = time.perf_counter()
                    float(call()[0])
                    times.append(time.perf_counter() - begin)
                seconds.append(min(times, default=math.inf) * probe.shape[0] / timed.shape[0])
    except torch.OutOfMemoryError:
        release_memory()
        return None
    others = meter.others() if on_cpu else 0.0
    busy = others > BUSY
    if not agrees(traces[-1], traces[0]):
        return None
    chosen = 0 if seconds[-1] > seconds[0] and not busy else -1
    return VariantTimes(
        {str(allowed[chosen]): seconds[chosen]}, allowed[chosen], others=others if busy else 0.0, rounds=0
    )


def _whole_batch(probe: Probe) -> Probe:
    """The probe with all patches of a step.

    Launches, which take the same time for a few patches, would make a short run look long on a GPU.
    """
    return replace(probe, shape=(max(probe.batch_size, probe.shape[0]), *probe.shape[1:]))


def build_kernels(network: nn.Module, probe: Probe, allowed: list[Variant], *, timed: bool = False) -> None:
    """Build the Triton kernels of a step together, rather than one by one at their first launch.

    Those of the last variant as trained; where variants are to be `timed`, also those of that, as a dropout changes
    the kernels of its norm, and of the first one the loss. Does nothing where the variant has no such kernels.
    """
    if not (probe.build_together and allowed[-1].fused_kernels and triton_works(probe.device)):
        return
    kinds = [(_whole_batch(probe), allowed[-1], True)]
    if timed:
        kinds = [(probe, allowed[0], False), (probe, allowed[-1], False), *kinds]
    with out_of_memory_ends_block(), random_state_kept(probe.device), built_together():
        for size, variant, dropouts in kinds:
            _pass(_copy(network, size, variant, dropouts=dropouts), size, variant)()


def fastest_variant(
    network: nn.Module,
    probe: Probe,
    allowed: list[Variant],
    memory: Path,
    *,
    seconds: float = MEASURE_S,
    passes: float = math.inf,
    is_short: Callable[[float], bool] | None = None,
    timed: dict[str, VariantTimes] | None = None,
) -> VariantTimes:
    """Time the allowed variants, forward and backward, interleaved, for about as many seconds at most.

    Where two rounds would take longer than that, the first variant is taken. passes: how many of them the run will
    make, in the size of the probe; a short run is measured in fewer rounds. is_short: whether a run of which a pass
    takes so many seconds is too short to compare; it takes the last variant, if that is sound (`_usual_variant`).
    timed: what this run has timed before, which is taken as it is; gets the result.

    A variant is excluded if, in any pass, its loss differs from that of the first one, the reference, by more than
    2 %, or its gradient norm by more than 20 %. One is chosen over the reference only if the whole interval of its gain
    says that it is faster. Times that were taken while other programs used the processor decide nothing: the last
    variant is taken then, if it is sound, or the first one. Others are cached in `memory` under the machine, the
    network and the shape, so that the next run measures nothing. The network and torch's random state are left as they
    were.
    """
    # Where the functions are still being compiled, this waits for them; only then is the load that of the run.
    compiled = probe.device.type == "cpu" and cpu_kernels().functions is not None
    follow_cores(anew=True)
    sizes = [str(tuple(parameter.shape)) for parameter in network.parameters()]
    names = [str(variant) for variant in allowed]
    # The repr of a network shows its strides, norms and activations; the sizes cover layers without such a repr.
    rounds = _ROUNDS if passes >= _SHORT_RUN else (_ROUNDS[0], _ROUNDS[0])
    key = [_RULES, machine(probe.device), repr(network), sizes, probe.shape, probe.num_classes, names, compiled]
    path = memory / f"variant-{digest(key)}.json"
    timed = {} if timed is None else timed
    earlier = timed.get(path.name) or read_kept(path, allowed)
    if earlier is not None and (
        earlier.others or earlier.rounds >= rounds[1] or (is_short and is_short(earlier.pass_s))
    ):
        # Triton's own cache may have gone meanwhile, or lack kernels that these sizes need.
        build_kernels(network, probe, [earlier.variant])
        return earlier
    measured = timed[path.name] = _measured(network, probe, allowed, seconds=seconds, rounds=rounds, is_short=is_short)
    if not measured.others and measured.rounds != 1:
        keep(measured, path, machine(probe.device))
    return measured


def _measured(
    network: nn.Module,
    probe: Probe,
    allowed: list[Variant],
    *,
    seconds: float,
    rounds: tuple[int, int],
    is_short: Callable[[float], bool] | None,
) -> VariantTimes:
    """`fastest_variant` without what was measured before."""
    begun, names = time.perf_counter(), [str(variant) for variant in allowed]
    build_kernels(network, probe, allowed, timed=True)
    if is_short is not None:
        usual = _usual_variant(network, probe, allowed, seconds)
        if usual is not None and usual.others and 2 * (time.perf_counter() - begun) < seconds:
            # What others used, perhaps for a moment only, made the passes longer.
            follow_cores(anew=True)
            again = _usual_variant(network, probe, allowed, seconds)
            usual = min(usual, again or usual, key=lambda times: times.pass_s)
        if usual is not None and (is_short(usual.pass_s) or time.perf_counter() - begun > seconds):
            return usual
    traces: dict[str, list[Trace]] = {name: [] for name in names}
    copies = {str(variant): _copy(network, probe, variant) for variant in allowed}
    calls = {str(variant): _pass(copies[str(variant)], probe, variant) for variant in allowed}
    if seconds < MEASURE_S:
        with random_state_kept(probe.device):
            if kind_of(probe.device).accelerator:
                float(calls[names[0]]()[0])  # libraries are loaded in the first pass
            begin = time.perf_counter()
            float(calls[names[0]]()[0])
        once = time.perf_counter() - begin
        if 2 * len(calls) * once > seconds:
            return VariantTimes({names[0]: once}, allowed[0])
    arms = {name: lambda call=call, name=name: traces[name].append(call()) for name, call in calls.items()}
    with random_state_kept(probe.device):
        comparison = compared(
            arms, probe.device, base=names[0], seconds=seconds, hopeless=_HOPELESS, best_only=True, rounds=rounds
        )
    reference = traces[names[0]][0]
    sound = [name for name in names if name == names[0] or all(agrees(trace, reference) for trace in traces[name])]
    medians = dict(sorted(((name, comparison.median(name)) for name in sound), key=lambda item: item[1]))
    excluded = tuple(name for name in names if name not in sound)
    if doubtful(comparison, probe.device):
        variant = allowed[-1] if names[-1] in sound else allowed[0]
        return VariantTimes(medians, variant, excluded, comparison.others, rounds[1])
    faster = [arm for arm in comparison.arms.values() if arm.arm in sound and arm.low > 1 + _LEAST]
    best = max(faster, key=lambda arm: arm.gain).arm if faster else names[0]
    variant = next(variant for variant in allowed if str(variant) == best)
    enough = len(comparison.seconds[best]) >= _ROUNDS[0]
    return VariantTimes(medians, variant, excluded, rounds=rounds[1] if enough else 1)


def compared(calls: Mapping[str, Callable[[], object]], device: torch.device, **limits: Any) -> Comparison:
    """`compare` on a device, in five rounds at least: precision, memory format and kernels are decided this way.

    limits: `base`, `seconds` and what else `compare` takes.
    """
    limits = {"rounds": _ROUNDS, "least": _LEAST, "clock": time.perf_counter, **limits}
    return compare(calls, sync=partial(synchronize, device), **limits)


def doubtful(comparison: Comparison, device: torch.device) -> bool:
    """Whether other programs used so much of the processor that times are unreliable."""
    return device.type == "cpu" and comparison.busy


def certainly_faster(comparison: Comparison, arm: str, device: torch.device, *, least: float = _LEAST) -> bool:
    """Whether the arm is faster than the base by enough rounds on an idle enough machine."""
    enough = len(comparison.seconds[arm]) >= _ROUNDS[0]
    return enough and comparison.arms[arm].low > 1 + least and not doubtful(comparison, device)


def faster_compiled(
    network: nn.Module, probe: Probe, variant: Variant, *, always: bool
) -> tuple[nn.Module, Accelerator]:
    """`network` compiled, if that works and is certainly 3 % faster (or `always`); else the network itself."""
    network_copy = _copy(network, probe, variant)
    set_by: SetBy = "user" if always else "measured"
    begin = time.perf_counter()
    with random_state_kept(probe.device):
        try:
            compiled = _compiled(_copy(network, probe, variant))
            # The compiler does its own fusion in place of Hasten's kernels.
            plain = replace(variant, fused_kernels=False)
            calls = {"eager": _pass(network_copy, probe, variant), "compiled": _pass(compiled, probe, plain)}
            traces = {name: call() for name, call in calls.items()}
        except Exception as error:
            log.warning("the network runs uncompiled: %s", first_line(error))
            return network, Accelerator(False, "measured", f"torch.compile failed: {first_line(error)}")
        compile_s = time.perf_counter() - begin
        comparison = compared(calls, probe.device, base="eager", seconds=MEASURE_S)
    eager, fused = (1e3 * comparison.median(name) for name in ("eager", "compiled"))
    gain = comparison.arms["compiled"]
    figures = f"{fused:.0f} ms against {eager:.0f} ms eager ({gain}), compiled in {compile_s:.0f} s"
    if not agrees(traces["compiled"], traces["eager"]):
        found = {name: "loss {:.4g} and gradient norm {:.4g}".format(*trace) for name, trace in traces.items()}
        return network, Accelerator(False, "measured", "compiled it gives {compiled}, eager {eager}".format(**found))
    if not always and not certainly_faster(comparison, "compiled", probe.device):
        return network, Accelerator(False, "measured", f"not certainly faster: {figures}")
    return _compiled(network), Accelerator(True, set_by, figures)


def _compiled(network: nn.Module) -> nn.Module:
    return torch.compile(network, dynamic=False)  # type: ignore[return-value]


def _copy(network: nn.Module, probe: Probe, variant: Variant, *, dropouts: bool = False) -> nn.Module:
    """A copy in the variant's memory format, so that timing leaves no trace (running statistics, gradients).

    It is in training mode but, unless `dropouts`, without those: their draws would drown what is compared.
    """
    network_copy = to_memory_format(copy.deepcopy(network), probe.spatial_dims, variant.channels_last).train()
    fused_norms(network_copy, variant.fused_kernels)
    for module in network_copy.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.train(dropouts)
    return network_copy


def agrees(trace: Trace, reference: Trace) -> bool:
    """Whether loss and gradient norm are the reference's, within what a shorter float may change. NaN never agrees."""
    (loss, norm), (true_loss, true_norm) = trace, reference
    same_loss = (loss - true_loss).abs() <= 0.02 * true_loss.abs() + 1e-3
    same_norm = (norm - true_norm).abs() <= 0.2 * true_norm + 1e-6
    return bool(same_loss & same_norm)


def machine(device: torch.device) -> list[str | int]:
    """What a measurement is valid for: the name of the CPU or GPU, torch's version and number of threads."""
    name = device_name(device) if kind_of(device).accelerator else cpu_model()
    return [name, torch.__version__, torch.get_num_threads()]
