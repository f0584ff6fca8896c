"""Settling what only this machine can tell: precision, memory format, and what is worth compiling."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from hasten.cache.arena import Arena
from hasten.cache.key import cache_dir, digest
from hasten.distribute.parts import CaseParts
from hasten.distribute.world import World
from hasten.engine.job import Planned, with_train
from hasten.engine.measure import (
    MEASURE_S,
    Engaged,
    Precision,
    Probe,
    Variant,
    explain,
    faster_compiled,
    fastest_variant,
)
from hasten.feed.rounds import RoundedProgram
from hasten.feed.staged import Stage, StagedProgram, make_staged, stage_plan
from hasten.nets.build import divisor
from hasten.nets.surgery.fallback import keep_fp32, tiny_layers
from hasten.observe.clock import Clock
from hasten.sample.dealt import Dealt
from hasten.sample.mixed import MixedProgram, make_mixed
from hasten.sample.program import BatchProgram, BatchSpec, make_program
from hasten.sample.share import WHOLE, Share

OneProgram = BatchProgram | MixedProgram
Program = OneProgram | StagedProgram | RoundedProgram
Cases = tuple[int, ...] | Dealt

log = logging.getLogger(__name__)

MEASURE_SHARE = 0.1
"""Of the time until train.max_seconds that measuring precision and memory format may take."""
_GIVEN = "set in the configuration"
_COMPILE_SECONDS = 40.0
"""What compiling a batch program costs on a slow machine; a compiled one saves about four fifths of an eager one."""
_NETWORK_COMPILE_SECONDS = 1200.0
"""Seconds of eager training below which compiling the network is not even tried: trying costs about a minute."""


def settle_variant(
    planned: Planned, network: nn.Module, budget_s: float = math.inf
) -> tuple[Planned, dict[str, Engaged], float]:
    """Precision and memory format, as set or the fastest measured, and the seconds of a step's forward and backward.

    budget_s: seconds that measuring may take.

    Layers that must not, or are set not to, run in a shorter float are kept from it in `network`, in place. Nothing is
    measured, and the seconds are 0, where precision, memory format and compiling are all set.
    """
    train = planned.config.train
    kept = keep_layers(planned, network)
    precisions = _precisions(planned)
    formats = [train.channels_last] if train.channels_last is not None else [False, True]
    allowed = [Variant(precision=precision, channels_last=last) for precision in precisions for last in formats]
    variant, why, seconds = allowed[0], "", 0.0
    if len(allowed) > 1 or train.compile is None:
        probe = probe_of(planned)
        memory = cache_dir(planned.config.cache) / "measured"
        measured = fastest_variant(network, probe, allowed, memory, seconds=min(MEASURE_S, budget_s))
        variant = measured.variant
        why = explain(measured) if len(allowed) > 1 else ""
        seconds = measured.seconds[str(variant)] * (planned.config.sample.batch_size or 1) / probe.shape[0]
    precision_why = (_GIVEN if train.precision is not None else why) + kept
    engaged = {
        _PRECISION_NAMES[variant.precision]: Engaged(variant.precision != "fp32", precision_why),
        "channels-last": Engaged(variant.channels_last, why if train.channels_last is None else _GIVEN),
    }
    settled = with_train(planned, precision=variant.precision, channels_last=variant.channels_last)
    return settled, engaged, seconds


_PRECISION_NAMES = {"fp32": "autocast bf16", "bf16": "autocast bf16", "fp16": "autocast fp16", "tf32": "TF32"}


def _precisions(planned: Planned) -> list[Precision]:
    """The precisions to choose from; the first one is what the others are compared with."""
    given = planned.config.train.precision
    if given is not None:
        return [given]
    return ["fp32", "tf32", "bf16"] if planned.device.type == "cuda" else ["fp32", "bf16"]


def keep_layers(planned: Planned, network: nn.Module) -> str:
    """Keep layers in float32, in place: those that are set, and on a CPU those whose bf16 gradients are wrong.

    There a bf16 convolution whose image is shorter than its filter returns uninitialised memory as its weights'
    gradient (torch 2.13 with AVX512-BF16; the loss looks normal). Returns what to add to the reason for the precision.
    """
    train = planned.config.train
    told = ""
    if train.fp32_layers:
        try:
            names = keep_fp32(network, train.fp32_layers)
        except ValueError as error:
            raise ValueError(f"train.fp32_layers: {str(error).removeprefix('patterns: ')}") from None
        told = f"; {len(names)} layers stay in float32 (train.fp32_layers)"
    if planned.device.type != "cpu" or train.precision not in (None, "bf16") or min(_deepest(planned)) >= 3:
        return told
    tiny = tiny_layers(network, example_of(planned))
    if tiny:
        keep_fp32(network, tiny)
        told += f"; {len(tiny)} convolutions of the smallest features stay in float32, as a CPU's bf16 is unsound there"
    return told


def example_of(planned: Planned, *, small: bool = False) -> Tensor:
    """An image (1, C, ...) of the training patch's size, as the network takes it; or the smallest two for its norms."""
    channels, dims = len(planned.case_set.channels), planned.case_set.spatial_dims
    patch, unit = planned.config.sample.patch, divisor(planned.config.network)
    assert patch is not None
    sides = [min(side, 2 * by) if small else side for side, by in zip(patch, unit, strict=True)]
    # Two, as a batch norm has but one value of each where the coarsest features are a single voxel.
    image = torch.randn(2 if small else 1, channels, *sides[3 - dims :], generator=torch.Generator().manual_seed(0))
    return image.to(planned.device)


def time_left(planned: Planned, clock: Clock) -> float:
    """Seconds until train.max_seconds; infinite without it."""
    limit = planned.config.train.max_seconds
    return math.inf if limit is None else limit - clock.elapsed


def fitting_steps(planned: Planned, clock: Clock, step_seconds: float) -> int:
    """The run's steps; with progressive patches, which last shares of the steps, no more than fit into the time."""
    steps, left = planned.config.train.steps, time_left(planned, clock)
    assert steps is not None
    if not planned.config.sample.stages or not step_seconds or steps * step_seconds <= left:
        return steps
    fitting = max(1, int(left / step_seconds))
    log.warning(
        "train.max_seconds: %d steps of about %.2g s don't fit into the %.0f s that are left; sample.stages are shares "
        "of %d steps",
        steps, step_seconds, left, fitting,
    )  # fmt: skip
    return fitting


def settle_network(
    planned: Planned, network: nn.Module, predicted: float, world: World | None = None
) -> tuple[Planned, nn.Module, Engaged]:
    """The network, compiled if that is set, or if the run is long enough for it to pay and it measures faster.

    predicted: seconds that the steps are expected to take.
    """
    train = planned.config.train
    wanted = train.compile
    found = network
    if wanted is None and world is not None and world.size > 1:
        # Each would measure for itself, and one might find otherwise than the rest.
        engaged = Engaged(False, "not tried where several processes share the step; set train.compile")
    elif wanted is None and predicted < _NETWORK_COMPILE_SECONDS:
        limit = f"{_NETWORK_COMPILE_SECONDS / 60:.0f} min"
        engaged = Engaged(False, f"the steps take about {predicted:.0f} s; compiling is tried in runs of over {limit}")
    elif wanted is False:
        engaged = Engaged(False, _GIVEN)
    else:
        found, engaged = faster_compiled(
            network, probe_of(planned), variant_of(planned), always=bool(wanted), blocks=train.compile_blocks
        )
    return with_train(planned, compile=engaged.on), found, engaged


def _deepest(planned: Planned) -> list[int]:
    """Sides of the coarsest feature map of a patch."""
    patch, unit = planned.config.sample.patch, divisor(planned.config.network)
    assert patch is not None
    first = 0 if planned.case_set.spatial_dims == 3 else 1
    return [side // by for side, by in zip(patch[first:], unit[first:], strict=True)]


def variant_of(planned: Planned) -> Variant:
    train = planned.config.train
    assert train.precision is not None
    assert train.channels_last is not None
    return Variant(precision=train.precision, channels_last=train.channels_last)


def probe_of(planned: Planned) -> Probe:
    """One or two patches of the run's shape: ratios are those of the whole batch, at a fraction of its time.

    Two on a GPU, where a single one may leave it waiting for launches.
    """
    patch, size = planned.config.sample.patch, planned.config.sample.batch_size
    assert patch is not None
    assert size is not None
    return Probe(
        loss=planned.loss(),
        shape=(1 if planned.device.type == "cpu" else min(size, 2), len(planned.case_set.channels), *patch),
        num_classes=len(planned.case_set.labels),
        spatial_dims=planned.case_set.spatial_dims,
        device=planned.device,
    )


def settle_program(
    planned: Planned, arena: Arena, share: Share = WHOLE, held: CaseParts | None = None
) -> tuple[Planned, Program, Engaged]:
    """The batch program of a rank's share, compiled if that is set, or if it pays within this run.

    held: the training cases, where they are dealt into parts; else they lie in `arena`.
    """
    config = planned.config
    spec = BatchSpec(
        sample=config.sample,
        num_channels=arena.num_channels,
        spatial_dims=planned.case_set.spatial_dims,
        spacing=_rotation_spacing(planned),
    )
    source = arena if held is None else held.arena(0)
    cases = arena.index(tuple(case.id for case in planned.train)) if held is None else held.dealt(0)
    wanted, why = config.sample.compile, _GIVEN
    marker = _kernel_marker(planned)
    if wanted is None and planned.device.type == "cpu":
        wanted, why = False, "on a CPU, making a batch sample by sample measured faster (benchmarks/results, feed)"
    if wanted is None:
        tables, some = (source.tables, cases) if source.part is None else (source.part.tables, (0,))
        eager = make_program(spec, tables, some, config.train.seed, compile=False, share=share)
        wanted, why = _compile_pays(eager, config.train.steps or 0, planned.device, known=marker.is_file())
    program = _made(planned, spec, source, cases, share, held, compile=wanted)
    if program.compiled:
        # Only a hint for the next run's decision: a cache folder that can't be written must not end this one.
        with contextlib.suppress(OSError):
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
    on = Engaged(program.compiled, f"{why}; {program.why}" if wanted else why)
    part = dataclasses.replace(config.sample, compile=program.compiled)
    return dataclasses.replace(planned, config=dataclasses.replace(config, sample=part)), program, on


def _made(
    planned: Planned, spec: BatchSpec, source: Arena, cases: Cases, share: Share, held: CaseParts | None, *,
    compile: bool,
) -> Program:  # fmt: skip
    """One program, or one for each size of the patch, or for each round of dealt cases."""
    seed, staged = planned.config.train.seed, bool(planned.config.sample.stages)
    stages = _stages(planned)

    def make(arena: Arena, cases: Cases) -> OneProgram | StagedProgram:
        def one(own: BatchSpec) -> OneProgram:
            if arena.part is not None:
                return make_mixed(own, arena, cases, seed, compile=compile, share=share)
            return make_program(own, arena.tables, cases, seed, compile=compile, pages=arena.pages, share=share)

        return make_staged(spec, stages, one) if staged else one(spec)

    return make(source, cases) if held is None else held.program(make, stages)


def _stages(planned: Planned) -> tuple[Stage, ...]:
    """Of the whole run; one where patches keep their size."""
    sample, train = planned.config.sample, planned.config.train
    assert sample.patch is not None
    assert sample.batch_size is not None
    assert train.steps is not None
    least = 3 if planned.device.type == "cpu" and train.precision == "bf16" else 1  # as for `_deepest`
    unit = divisor(planned.config.network)
    return stage_plan(
        sample.stages, train.steps, sample.patch, unit, sample.batch_size, sample.stage_voxels, least=least
    )


def _compile_pays(eager: BatchProgram, steps: int, device: torch.device, *, known: bool) -> tuple[bool, str]:
    """Compare what compiling saves over the whole run with what it costs."""

    def once() -> float:
        begin = time.perf_counter()
        eager(0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    once()
    seconds = min(once(), once())
    saved, cost = 0.8 * seconds * steps, _COMPILE_SECONDS / 10 if known else _COMPILE_SECONDS
    kernel = "a kernel compiled by an earlier run" if known else "compiling"
    told = (
        f"an eager batch takes {1e3 * seconds:.0f} ms, so {kernel} (about {cost:.0f} s) would save about {saved:.0f} s"
    )
    return saved > cost, f"{told} in {steps} steps"


def _kernel_marker(planned: Planned) -> Path:
    """A file that says that torch's own cache has seen this program."""
    sample = dataclasses.replace(planned.config.sample, compile=None)
    channels, dims = len(planned.case_set.channels), planned.case_set.spatial_dims
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    key = digest([torch.__version__, dataclasses.asdict(sample), channels, dims, str(planned.device), folder])
    return cache_dir(planned.config.cache) / "measured" / f"kernel-{key}"


def _rotation_spacing(planned: Planned) -> tuple[float, float, float]:
    spacing = planned.config.prepare.spacing
    if spacing and all(spacing):
        return spacing
    columns = list(zip(*planned.fingerprint.spacings, strict=True))
    depth, height, width = (sorted(column)[len(column) // 2] for column in columns)
    return depth, height, width
