"""The training step of nnU-Net's trainer, set as this machine is faster, and as one CUDA graph that reads the batch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hasten.config.decision import Accelerator, Accelerators
from hasten.config.schema import TrainConfig
from hasten.devices import kind_of
from hasten.nets.build import Loss
from hasten.nets.losses.regions import Members, region_masks
from hasten.nets.size import small_image
from hasten.nets.surgery.fallback import keep_fp32, slice_strided, tiny_layers
from hasten.nets.surgery.fuse import fused_norms
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.nets.surgery.operate import operate
from hasten.nets.weights import unwrapped
from hasten.observe.cpu_load import BUSY, other_cores
from hasten.optim.base import lay_out_moments
from hasten.runtime.measure import MEASURE_S, Probe, faster_compiled, fastest_variant, probe_batch_size
from hasten.runtime.precision import to_memory_format
from hasten.runtime.variant import Variant, VariantTimes, candidates, explain, has_fast_bf16
from hasten.training.capture import CapturedStep, why_not
from hasten.training.step import TrainStep
from hasten.training.update import Update

log = logging.getLogger(__name__)

LEAST_ITERATIONS = 1000
"""Shortest training, in iterations, for which anything is measured or compiled: both take up to a minute."""
_CLIP_NORM = 12.0
_AS_NNUNET = "as in nnU-Net"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSetting:
    """What the step of a training is made for."""

    shape: tuple[int, int, int, int, int]
    """(B, C, D, H, W) of a batch; D is 1 in 2-D."""
    strides: tuple[int, ...]
    """Voxels of a side of the patch to one of the coarsest features, along each axis."""
    num_classes: int
    spatial_dims: int
    iterations: int
    """Iterations left in the training."""
    regions: Members = ()
    """Class indices of each of the target's masks."""
    several_ranks: bool
    loss_asks_host: bool = False
    """Whether the loss reads a value, which a CUDA graph can't."""
    idle: bool
    """Whether other programs leave the processor alone, so that times can be trusted."""
    memory: Path
    """Folder of the measurements of earlier trainings."""

    @property
    def measured(self) -> bool:
        """Ranks that measured by themselves might disagree."""
        return self.iterations >= LEAST_ITERATIONS and not self.several_ranks


def make_step(
    network: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    setting: StepSetting,
    device: torch.device,
    scaler: torch.amp.GradScaler | None = None,
) -> tuple[TrainStep, Accelerators]:
    """The step, whose `network` takes the place of nnU-Net's, and what is switched on and why.

    network: nnU-Net's, perhaps compiled or in DDP; it is changed in place, and its weights and their names stay.
    scaler: nnU-Net's, which is used where the step runs in fp16, as nnU-Net's does on a GPU.
    """
    bare = unwrapped(network)
    slice_strided(bare)
    accelerators = {"fused norms": _fuse_norms(bare, setting)}
    probe = Probe(
        loss=(lambda output, label: loss(output, region_masks(label, setting.regions))) if setting.regions else loss,
        shape=(probe_batch_size(setting.shape[0], device), *setting.shape[1:]),
        num_classes=setting.num_classes,
        spatial_dims=setting.spatial_dims,
        device=device,
    )
    variants = _variants(device) if setting.measured else [_usual(device)]
    if device.type == "cpu" and len(variants) > 1:
        tiny = tiny_layers(bare, torch.zeros(2, setting.shape[1], *setting.shape[5 - setting.spatial_dims :]))
        if tiny:
            keep_fp32(bare, tiny)
    variant, why, seconds = variants[0], _AS_NNUNET, 0.0
    if len(variants) > 1:
        measured: VariantTimes = fastest_variant(
            bare, probe, variants, setting.memory, seconds=MEASURE_S if setting.idle else 0.0
        )
        variant, why = measured.variant, explain(measured)
        seconds = measured.pass_s
    accelerators["precision and memory format"] = Accelerator(
        variant != _usual(device), "measured" if len(variants) > 1 else "default", f"{variant}: {why}"
    )
    to_memory_format(bare, setting.spatial_dims, variant.channels_last)
    lay_out_moments(optimizer)
    fused_norms(bare, variant.fused_kernels)
    result, compiled = network, network is not bare and not setting.several_ranks
    if compiled and seconds and setting.idle:
        result, accelerators["compiled network"] = faster_compiled(bare, probe, variant, always=False)
        compiled = result is not bare
    update = Update(
        weights=bare, optimizer=optimizer, clip_norm=_CLIP_NORM, scaler=scaler if variant.precision == "fp16" else None
    )
    step = TrainStep(
        network=result,
        loss=loss,
        update=update,
        precision=variant.precision,
        channels_last=variant.channels_last,
        spatial_dims=setting.spatial_dims,
        device=device,
        fused_kernels=not compiled and variant.fused_kernels,
    )
    return step, accelerators


def is_idle(device: torch.device) -> bool:
    """Whether times on this device can be trusted; takes a second on a CPU."""
    return device.type != "cpu" or other_cores() <= BUSY


def evaluate(step: TrainStep, image: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """() loss and (B, K, ...) scores of the finest output, as the step computes them. image, target: as of the step."""
    with step.autocast(), gpu_forms(step.channels_last and step.fused_kernels):
        output = step.network(step.to_layout(image))
    return step.loss(output, target), output if isinstance(output, Tensor) else output[0]


def fused_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """SGD as one pass over the weights; any other optimizer unchanged."""
    if type(optimizer) is not torch.optim.SGD:
        return optimizer
    groups = [{**group, "fused": True, "foreach": False} for group in optimizer.param_groups]
    fused = torch.optim.SGD(groups, lr=optimizer.defaults["lr"], fused=True)
    fused.register_load_state_dict_post_hook(_fused_again)
    return fused


def _fused_again(optimizer: torch.optim.Optimizer) -> None:
    """Set the options again after loading: they come from a checkpoint that nnU-Net's own trainer may have written."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    lay_out_moments(optimizer)


def _fuse_norms(network: nn.Module, setting: StepSetting) -> Accelerator:
    """Fuse norms with activations. Biases that cancel stay trained in DDP, which waits for every weight's gradient."""
    units = (1, *setting.strides)[-3:]
    image = small_image(setting.shape[2:], units, setting.shape[1], setting.spatial_dims)
    try:
        surgery = operate(network, image.to(next(network.parameters()).device), biases=not setting.several_ranks)
    except ValueError as error:
        return Accelerator(False, "data", f"the network runs as it is, as {error}")
    return Accelerator(surgery.fused > 0, "data", str(surgery))


def _usual(device: torch.device) -> Variant:
    return Variant(precision="fp16" if kind_of(device).accelerator else "fp32", channels_last=False)


def _variants(device: torch.device) -> list[Variant]:
    """The first is what the others are compared with. Before Ampere, GPUs have no other than nnU-Net's fp16."""
    slow = kind_of(device).accelerator and not has_fast_bf16(device)
    return [_usual(device)] if slow else candidates(device, TrainConfig())


def why_not_captured(step: TrainStep, setting: StepSetting) -> str | None:
    """Why the step is not captured; None if no reason is known beforehand."""
    if setting.several_ranks:
        return "several processes share the step"
    reason = why_not(step)
    if reason is None and setting.loss_asks_host:
        return "the loss asks the host whether a batch has labelled voxels"
    if reason is None and not setting.measured:
        return f"capturing takes a dozen steps, and is tried in trainings of {LEAST_ITERATIONS} iterations or more"
    return reason


class GraphedStep:
    """`graphed(image, target)` trains on a batch, after a few steps as one CUDA graph where that does the same.

    nnU-Net's loop asks a loader for each batch, so it is copied to where the graph reads it. A batch of another shape
    than the first runs without the graph.
    """

    def __init__(self, step: TrainStep, setting: StepSetting) -> None:
        self._step, self._reason = step, why_not_captured(step, setting)
        self._inputs: tuple[Tensor, ...] = ()
        self._static: tuple[Tensor, ...] = ()
        self._captured = None if self._reason else CapturedStep(step=step, load=self._load, batch=self._batch)

    @property
    def accelerator(self) -> Accelerator:
        if self._captured is None:
            return Accelerator(False, "data", str(self._reason))
        return self._captured.accelerator

    def __call__(self, image: Tensor, target: Tensor) -> Tensor:
        """() float32 loss on the device."""
        self._inputs = image, target
        if self._captured is not None and not self._static:
            self._static = image.clone(), target.clone()
        if self._captured is None or any(
            each.shape != other.shape for each, other in zip(self._inputs, self._static, strict=True)
        ):
            return self._step(image, target, 0)
        return self._captured(0)

    def close(self) -> None:
        """Free the graph's memory. Later steps run without it."""
        if self._captured is not None:
            self._captured.close()

    def _load(self, index: int) -> None:
        for static, value in zip(self._static, self._inputs, strict=True):
            static.copy_(value)

    def _batch(self) -> tuple[Tensor, Tensor]:
        image, target = self._static
        return image, target
