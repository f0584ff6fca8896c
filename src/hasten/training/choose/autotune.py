"""Decisions that need a measurement on this machine: precision, memory format, batch size, compilation, CUDA graph."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from operator import floordiv

import torch
from torch import Tensor, distributed, nn

from hasten.augment.program import Program
from hasten.cache.key import cache_dir
from hasten.config.decision import GIVEN, Accelerator, Accelerators, SetBy
from hasten.config.networks import is_own
from hasten.config.settled import with_settings
from hasten.config.size import parse_size
from hasten.devices import kind_of
from hasten.distribute.consensus import run_on_rank0
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World
from hasten.kernels.use import triton_works
from hasten.nets.build import divisor
from hasten.nets.cpu.kernels import cpu_kernels
from hasten.nets.custom_network import decides_by_values, small_side
from hasten.nets.freeze import freeze_parameters
from hasten.nets.recompute import recompute
from hasten.nets.size import small_image
from hasten.nets.surgery.fallback import keep_fp32, slice_strided, tiny_layers
from hasten.nets.surgery.fuse import Surgery, fused_norms
from hasten.nets.surgery.operate import operate, operate_built
from hasten.runtime.batch_size import find_batch_size_for
from hasten.runtime.measure import MEASURE_S, Probe, build_kernels, faster_compiled, fastest_variant, probe_batch_size
from hasten.runtime.precision import autocast, memory_format
from hasten.runtime.variant import Variant, candidates, explain, has_fast_bf16, variant_of
from hasten.training.capture import CapturedStep, captured_run, why_no_batch, why_not
from hasten.training.choose.experiments import Experiments
from hasten.training.plan import RunPlan, build_net, with_train
from hasten.training.step import TrainStep

log = logging.getLogger(__name__)

Group = distributed.ProcessGroup | None
_DATA_DEPENDENT_FLOW = "the network decides by values on its way"
_SHORT_STEPS = 1000
"""Runs of at most this many steps use the CPU's default variant: a comparison takes as long as 10 to 20 of them."""
_NO_BF16 = "this processor has no bf16 instructions"
_NETWORK_COMPILE_SECONDS = 60.0
"""Seconds that a trial of the compiled network takes on a CPU, about."""
_NETWORK_COMPILE_SAVES = 0.15
"""Share of the steps' time that compiling the network is likely to save."""
STEPS_SHARE = 0.85
"""Share of the time, left once the cases are prepared, for passes and updates as they are timed, alone; the rest is for
batches, the average of the weights, validations and the report."""
_LEAST_CAPTURED_STEPS = 200
"""Shortest run, in steps, whose step is captured: comparing the graph with the step takes a dozen steps."""


def operated_net(planned: RunPlan, start: Mapping[str, Tensor] | None = None) -> tuple[nn.Module, Surgery]:
    """The planned network on its device, after surgery, and a summary of the surgery.

    Weights are initialised from train.seed, except those in `start`, by name and each in the shape of the network's.
    Weights that train.freeze names need no gradient.
    """
    network = build_net(planned)
    slice_strided(network)
    if start is not None:
        network.load_state_dict(dict(start), strict=False)
    name, surgery = planned.config.network.name, Surgery()
    if not is_own(planned.config.network):
        surgery = operate_built(network, lambda: example_of(planned, small=True))
    elif _has_data_dependent_flow(planned, network):
        # Surgery by tracing covers one execution path; a network with several must not rely on it.
        log.warning("%s: decides by values on its way; it is trained unchanged, uncompiled", name)
    else:
        try:
            surgery = operate(network, example_of(planned, small=True))
        except ValueError as error:
            log.warning("%s: is trained as it is, as %s", name, error)
    freeze_parameters(network, planned.config.train.freeze, at="train.freeze")
    return network, surgery


def _has_data_dependent_flow(planned: RunPlan, network: nn.Module) -> bool:
    """Whether this is a user-defined network whose control flow depends on the image's values."""
    return is_own(planned.config.network) and decides_by_values(network, example_of(planned, small=True))


def of_surgery(surgery: Surgery, device: torch.device) -> Accelerators:
    """What surgery did, and on a CPU whether the functions that it needs there are compiled."""
    accelerators = {"surgery": Accelerator(surgery.fused + surgery.biases > 0, "data", str(surgery))}
    if device.type == "cpu":
        kernels = cpu_kernels()
        accelerators["compiled CPU functions"] = Accelerator(kernels.functions is not None, "default", kernels.why)
    return accelerators


def choose_variant_on_all(
    planned: RunPlan, network: nn.Module, experiments: Experiments, strategy: Strategy, group: Group
) -> tuple[RunPlan, float, Accelerators]:
    """`choose_variant` on rank 0; all ranks use its choice, as separate measurements might disagree.

    Also returns the seconds of a forward and backward pass.
    """
    world = strategy.world
    variant, seconds, accelerators = run_on_rank0(
        world, lambda: choose_variant(planned, network, experiments), group=group
    )
    if not world.first:
        keep_layers(planned, network)
    if world.size > 1:
        accelerators["strategy"] = Accelerator(True, "user", f"{strategy.name} on {world.size} processes")
    fused_norms(network, variant.fused_kernels)
    return with_variant(planned, variant), seconds, accelerators


def choose_variant(
    planned: RunPlan, network: nn.Module, experiments: Experiments
) -> tuple[Variant, float, Accelerators]:
    """Choose precision and memory format, as configured or as measured; also returns the seconds of a step.

    Modifies `network` in place: layers that must not run in a 16-bit type stay in float32.
    Nothing is measured, and the seconds are 0, where precision, memory format and compilation are all configured.
    """
    train = planned.config.train
    fp32_note = keep_layers(planned, network)
    allowed = candidates(planned.device, train)
    variant, why, seconds = allowed[0], "", 0.0
    if len(allowed) > 1 or train.compile is None:
        probe = probe_of(planned)
        # Results are cached under the repr of a network, which does not show what user-defined code computes.
        memory = cache_dir(planned.config.cache) / "measured" / (planned.config.network.digest or "")
        probes_per_step = planned.config.sample.batch_size / probe.shape[0]
        with experiments.running():
            measured = fastest_variant(
                network,
                probe,
                allowed,
                memory,
                seconds=min(MEASURE_S, experiments.left_s),
                passes=train.steps * probes_per_step,
                timed=experiments.timed,
                is_short=_short_run(planned, allowed, probes_per_step, experiments.run_s),
            )
        variant = measured.variant
        why = explain(measured) if len(allowed) > 1 else ""
        seconds = measured.pass_s * probes_per_step
    else:
        build_kernels(network, probe_of(planned), allowed)
    only_fp32 = {each.precision for each in allowed} == {"fp32"}
    precision_why = (GIVEN if train.precision is not None else _NO_BF16 if only_fp32 else why) + fp32_note
    measured_as: SetBy = "measured" if len(allowed) > 1 else "default"
    precision_by: SetBy = "user" if train.precision is not None else "default" if only_fp32 else measured_as

    def outcome(on: bool, setting: object) -> Accelerator:
        return Accelerator(on, measured_as, why) if setting is None else Accelerator(on, "user", GIVEN)

    accelerators = {
        "precision": Accelerator(variant.precision != "fp32", precision_by, f"{variant.precision}: {precision_why}"),
        "channels-last": outcome(variant.channels_last, train.channels_last),
    }
    if kind_of(planned.device).triton:
        accelerators["fused kernels"] = outcome(variant.fused_kernels, train.fused_kernels)
    return variant, seconds, accelerators


def _short_run(
    planned: RunPlan, allowed: list[Variant], probes_per_step: float, seconds_left: float
) -> Callable[[float], bool] | None:
    """Whether the run, by the seconds of a probe's pass, takes bf16, channels-last and Hasten's kernels uncompared.

    None where that is not the last allowed variant, its kernels do not run, or the run is long at any speed. On a GPU
    with fast bf16 every run does: there they were the fastest each time.
    """
    reference, usual = allowed[0], allowed[-1]
    on_cpu, planned_steps = planned.device.type == "cpu", planned.config.train.steps
    if not usual.channels_last or reference.precision != "fp32":
        return None
    if not on_cpu and not (usual.precision == "bf16" and usual.fused_kernels and has_fast_bf16(planned.device)):
        return None
    if on_cpu and planned_steps > _SHORT_STEPS and math.isinf(seconds_left):
        return None
    if not (cpu_kernels().functions if on_cpu else triton_works(planned.device)):
        return None

    def is_short(pass_s: float) -> bool:
        step_s = pass_s * probes_per_step
        steps = min(planned_steps, seconds_left / step_s)
        return not on_cpu or steps <= _SHORT_STEPS

    return is_short


def with_variant(planned: RunPlan, variant: Variant) -> RunPlan:
    """`planned` with the variant, but false `fused_kernels` stay undecided where the user said nothing.

    On a CPU they have no meaning, and the run may be resumed on a GPU; there false would turn all other kernels off.
    """
    fused = planned.config.train.fused_kernels
    if kind_of(planned.device).triton and fused is not False:
        fused = variant.fused_kernels or None
    return with_train(planned, **{**asdict(variant), "fused_kernels": fused})


def keep_layers(planned: RunPlan, network: nn.Module) -> str:
    """Keep layers in float32, in place: on a CPU those whose bf16 gradients are wrong.

    A bf16 convolution whose image is shorter than its filter returns uninitialised memory as its weights'
    gradient (torch 2.13 with AVX512-BF16; the loss looks normal). Returns what to add to the reason for the precision.
    """
    coarsest = map(floordiv, planned.config.sample.patch, divisor(planned.config.network))
    sides = list(coarsest)[3 - planned.case_set.spatial_dims :]
    if planned.device.type != "cpu" or planned.config.train.precision not in (None, "bf16") or min(sides) >= 3:
        return ""
    tiny = tiny_layers(network, example_of(planned))
    if not tiny:
        return ""
    keep_fp32(network, tiny)
    return f"; {len(tiny)} convolutions of the smallest features stay in float32, as a CPU's bf16 is unsound there"


def example_of(planned: RunPlan, *, small: bool = False) -> Tensor:
    """An image (1, C, ...) of the training patch's size, as the network takes it; or the smallest two for its norms."""
    channels, dims = len(planned.case_set.channels), planned.case_set.spatial_dims
    patch, unit = planned.config.sample.patch, divisor(planned.config.network)
    if small and not is_own(planned.config.network):
        return small_image(patch, unit, channels, dims).to(planned.device)
    sides = list(map(small_side, patch, unit)) if small else list(patch)
    # Two, as a batch norm has but one value of each where the coarsest features are a single voxel.
    image = torch.randn(2 if small else 1, channels, *sides[3 - dims :], generator=torch.Generator().manual_seed(0))
    return image.to(planned.device)


def steps_to_come(planned: RunPlan, experiments: Experiments, step_seconds: float) -> int:
    """The steps of the run, or those that fit into its time. step_seconds: 0 where that was not measured."""
    steps = planned.config.train.steps
    if not step_seconds or math.isinf(experiments.run_s):
        return steps
    return max(1, int(min(steps, STEPS_SHARE * experiments.run_s / step_seconds)))


def with_fitted_stages(planned: RunPlan, steps: int) -> RunPlan:
    """`sample.stages` as shares of the `steps` that fit into the time, which may be fewer than are planned."""
    sample, share = planned.config.sample, steps / planned.config.train.steps
    stages = tuple((share * until, factor) for until, factor in sample.stages)
    return replace(planned, config=with_settings(planned.config, "sample", stages=stages))


def choose_activations(planned: RunPlan, network: nn.Module) -> Accelerators:
    """Recompute as many activations in the backward pass as the memory budget requires."""
    train = planned.config.train
    if train.activations == "all":
        return {}
    with autocast(planned.device, variant_of(train).precision):
        report = recompute(
            network, example_of(planned), parse_size(train.activations), batch_size=planned.config.sample.batch_size
        )
    if not report.fits:
        log.warning("train.activations: %s; give more, or a smaller sample.batch_size or sample.patch", report)
    return {"recomputed activations": Accelerator(bool(report.modules), "user", str(report))}


def choose_batch_size(planned: RunPlan, network: nn.Module) -> tuple[RunPlan, Accelerators]:
    """The run with the largest batch that fits, if sample.fit_batch is set; a resumed run does not search again."""
    config = planned.config
    if not config.sample.fit_batch:
        return planned, {}
    variant, dims, batch_size = variant_of(config.train), planned.case_set.spatial_dims, config.sample.batch_size
    with autocast(planned.device, variant.precision):
        found = find_batch_size_for(
            network,
            planned.loss(),
            tuple(example_of(planned).shape[1:]),
            num_classes=len(planned.case_set.labels),
            device=planned.device,
            layout=memory_format(dims, variant.channels_last),
            captured=kind_of(planned.device).graphs and config.train.capture is not False,
        )
    text = f"{found} patches instead of {batch_size}: the largest batch that fits"
    planned = replace(planned, config=with_settings(config, "sample", batch_size=found, fit_batch=False))
    planned = with_train(planned, learning_rate_batch=config.train.learning_rate_batch or batch_size)
    return planned, {"largest batch": Accelerator(True, "measured", text)}


def choose_compiled(
    planned: RunPlan, network: nn.Module, predicted: float, experiments: Experiments, world: World | None = None
) -> tuple[RunPlan, nn.Module, Accelerators]:
    """The network, compiled if configured, or if that is likely to pay within the run and measures faster.

    predicted: seconds that the steps are expected to take.
    """
    requested, result = planned.config.train.compile, network
    refusal = experiments.refusal(_NETWORK_COMPILE_SECONDS, _NETWORK_COMPILE_SAVES * predicted)
    if requested is not False and _has_data_dependent_flow(planned, network):
        outcome = Accelerator(False, "data", _DATA_DEPENDENT_FLOW)
    elif requested is None and kind_of(planned.device).accelerator:
        reason = "not tried on a GPU, where Hasten's kernels, if they run, gain more; set train.compile"
        outcome = Accelerator(False, "default", reason)
    elif requested is None and world is not None and world.size > 1:
        # Each rank would measure separately, and the results might differ.
        reason = "not tried where several processes share the step; set train.compile"
        outcome = Accelerator(False, "default", reason)
    elif requested is None and refusal:
        outcome = Accelerator(False, "measured", f"not tried: {refusal}; the steps take about {predicted:.0f} s")
    elif requested is False:
        outcome = Accelerator(False, "user", GIVEN)
    else:
        with experiments.running():
            result, outcome = faster_compiled(
                network, probe_of(planned), variant_of(planned.config.train), always=bool(requested)
            )
    return with_train(planned, compile=outcome.on), result, {"compiled network": outcome}


def choose_capture(
    planned: RunPlan, step: TrainStep, program: Program, steps: int
) -> tuple[RunPlan, CapturedStep | None, Accelerators]:
    """The step and its batch as a CUDA graph, if it can be captured; capture happens after a few steps of the run.

    steps: those that the run will make.
    """
    requested = planned.config.train.capture
    if requested is False:
        return planned, None, {"CUDA graph": Accelerator(False, "user", GIVEN)}
    reason = _why_no_graph(planned, step, program, steps)
    if reason is None:
        assert program.segment is not None
        return planned, captured_run(step, program.segment), {}
    if requested:
        log.warning("train.capture: the step can't be captured, as %s", reason)
    return with_train(planned, capture=False), None, {"CUDA graph": Accelerator(False, "data", reason)}


def _why_no_graph(planned: RunPlan, step: TrainStep, program: Program, steps: int) -> str | None:
    """Why a run has no graph of its step that isn't refused by its settings; None if no reason is known beforehand."""
    train, network = planned.config.train, planned.config.network
    reason = why_not(step) or why_no_batch(program)
    if reason is not None:
        return reason
    if train.activations != "all" and network.dropout > 0:
        return "recomputing a dropout asks the host for the random state"
    if is_own(network) and _has_data_dependent_flow(planned, step.update.weights):
        return _DATA_DEPENDENT_FLOW
    if train.capture is None and steps < _LEAST_CAPTURED_STEPS:
        return f"capturing takes some steps, and is tried in runs of {_LEAST_CAPTURED_STEPS} or more"
    return None


def probe_of(planned: RunPlan) -> Probe:
    """Patches of the run's shape, and its loss."""
    sample = planned.config.sample
    size = probe_batch_size(sample.batch_size, planned.device)
    return Probe(
        loss=planned.loss(),
        shape=(size, len(planned.case_set.channels), *sample.patch),
        num_classes=len(planned.case_set.labels),
        spatial_dims=planned.case_set.spatial_dims,
        device=planned.device,
        batch_size=sample.batch_size,
        build_together=not is_own(planned.config.network),
    )
