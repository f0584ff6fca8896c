"""Label maps of whole volumes: small ones in padded batches, large ones by a sliding window."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from hasten.config.schema import Triple
from hasten.config.settled import PlannedRun
from hasten.devices import kind_of
from hasten.nets.build import divisor
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.prediction.canvas import HOST, ArgmaxSink, Box, Mode
from hasten.prediction.regrid import Planes, RegridSink, thick_axis
from hasten.prediction.scores import averaged, first_output, highest
from hasten.prediction.windows import Windows, available_bytes, bands, slide, slow_axis, volume_shape, widened
from hasten.prepare.types import Geometry
from hasten.runtime.allocator import kept_memory
from hasten.runtime.core_follower import follow_cores
from hasten.runtime.out_of_memory import out_of_memory_ends_block
from hasten.runtime.precision import autocast, memory_format, tensor_cores, to_layout
from hasten.runtime.variant import variant_of

log = logging.getLogger(__name__)

WINDOW_BATCH = 4
"""Windows that go through the network together where neither the settings nor a measurement decide."""
_NO_LIMIT = 2**62
_IN_PIECES = "out of memory with a volume of %s in one piece; going on with windows of %s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference(Windows):
    """Inference settings: how a network is applied to volumes of any size."""

    overlap: float
    mode: Mode = "gaussian"
    reuse_constant: bool = True
    divisor: Triple
    """What each side of `window` is a multiple of, as the network asks."""
    whole_up_to: int
    """A volume of at most this many voxels, padded, goes through the network in one piece."""
    precision: str
    channels_last: bool
    spatial_dims: int
    fused_kernels: bool = False
    """Whether convolutions and concatenations run in `gpu_forms`, on a GPU in channels-last; norms are switched by
    `fused_norms`."""
    flip_axes: tuple[int, ...] = ()
    """Axes (0 to 2 of D, H, W) along all of whose mirrorings scores are averaged."""
    overlapping: bool = False
    """Whether the scores are of classes that may overlap, each held where its score is above 0."""
    classes: int = 0
    """Scores of each voxel. 0 is unknown: then a volume is never cut into bands to save memory."""
    sums_bytes: int | None = None
    """Bytes of scores that may be held at once; None takes half of the memory that is free."""


@torch.inference_mode()
def infer_labels(network: nn.Module, volumes: Sequence[Tensor], inference: Inference) -> Iterator[tuple[int, Tensor]]:
    """Yield (position in `volumes`, (D, H, W) class index on the device), each as soon as it is known.

    The index is uint8, int16 of more than 256 classes. Where classes overlap, it is (K, D, H, W) bool, the voxels that
    each holds.

    volumes: (C, D, H, W) tensors of any float dtype, on any device. Windows of several large volumes share a batch;
    of scores, only those that still wait for a window are held. Where memory runs out, batches are halved, a volume
    that does not fit in one piece goes by windows, and at last sums are held on the host; each is logged.
    """
    # Only volumes that are padded to one size share a batch: a case's labels must not depend on its batch.
    groups: dict[Triple, list[int]] = {}
    bands_of: dict[int, list[Box]] = {}
    for position, volume in enumerate(volumes):
        size = padded_size(volume_shape(volume), inference)
        if prod(size) <= inference.whole_up_to:
            groups.setdefault(size, []).append(position)
        else:
            bands_of[position] = _bands(volume_shape(volume), inference, halo=0)
    with _memory(inference, short=any(len(boxes) > 1 for boxes in bands_of.values())):
        for size, group in groups.items():
            rest, whole = dict.fromkeys(group), [(at, _all_of(volumes[at])) for at in group]
            with out_of_memory_ends_block():
                for position, labels in _decided(network, volumes, whole, _in_one(size, inference)):
                    del rest[position]
                    yield position, labels
            if rest:
                log.warning(_IN_PIECES, size, inference.window)
            bands_of |= {at: _bands(volume_shape(volumes[at]), inference, halo=0) for at in rest}
        boxes = [(position, box) for position, parts in bands_of.items() for box in parts]
        yield from _decided(network, volumes, boxes, inference)


def _decided(
    network: nn.Module, volumes: Sequence[Tensor], boxes: Sequence[tuple[int, Box]], inference: Inference
) -> Iterator[tuple[int, Tensor]]:
    """What `infer_labels` yields. boxes: positions in `volumes` and the part to decide, those of a volume in a row."""
    sinks: dict[int, ArgmaxSink] = {}

    def sink(number: int, shape: Triple) -> ArgmaxSink:
        decide = (lambda sums: sums > 0) if inference.overlapping else highest
        return sinks.setdefault(boxes[number][0], ArgmaxSink(decide, shape, inference.device))

    results = slide(
        lambda batch: network_scores(network, batch, inference),
        (volumes[position] for position, _ in boxes),
        inference,
        sink,
        within=lambda number: boxes[number][1],
    )
    last = {position: number for number, (position, _) in enumerate(boxes)}
    for number, labels in results:
        position = boxes[number][0]
        if number == last[position]:
            del sinks[position]
            yield position, labels


def _memory(inference: Inference, *, short: bool) -> AbstractContextManager[object]:
    """Keep freed memory for the next window on a CPU, unless memory is short: it may not fit what is next."""
    return kept_memory() if inference.device.type == "cpu" and not short else nullcontext()


def _bands(shape: Triple, inference: Inference, *, halo: int) -> list[Box]:
    budget = inference.sums_bytes
    if budget is None:
        budget = available_bytes(inference.sums_device or inference.device) // 2
    parts = bands(shape, inference, inference.classes, budget, halo=halo)
    if len(parts) > 1:
        log.info(
            "a volume of %s goes by windows in %d parts, as the scores of all take too much memory", shape, len(parts)
        )
    return parts


@torch.inference_mode()
def infer_on_grid(
    network: nn.Module,
    volume: Tensor,
    new_shape: Triple,
    inference: Inference,
    *,
    nearest: int | None = None,
    planes: Planes | None = None,
) -> Tensor:
    """What `infer_labels` gives of a volume (C, D, H, W), decided on another grid (D', H', W') of the same extent.

    Scores are interpolated linearly, and along the axis `nearest` taken from the nearest voxel. planes: is called with
    all of them, and from the start again where memory ran out.
    """
    shape = volume_shape(volume)
    if new_shape == shape and planes is None:
        ((_, labels),) = infer_labels(network, [volume], inference)
        return labels

    def decided(boxes: Sequence[Box], inference: Inference) -> Tensor:
        device, axis = inference.sums_device or inference.device, slow_axis(shape, inference)
        grid = partial(RegridSink, shape, new_shape, device, axis=axis, nearest=nearest, planes=planes, whole=[])
        results = slide(
            lambda batch: network_scores(network, batch, inference),
            [volume] * len(boxes),
            inference,
            lambda number, _: grid(overlapping=inference.overlapping, part=boxes[number]),
            within=lambda number: widened(boxes[number], shape),
        )
        return [labels for _, labels in results][-1]

    # With `planes` all scores of a plane are needed at once, so memory sets no limit.
    boxes = _bands(shape, inference if planes is None else dataclasses.replace(inference, sums_bytes=_NO_LIMIT), halo=1)
    with _memory(inference, short=len(boxes) > 1):
        if prod(size := padded_size(shape, inference)) <= inference.whole_up_to:
            with out_of_memory_ends_block():
                return decided([_all_of(volume)], _in_one(size, inference))
            log.warning(_IN_PIECES, shape, inference.window)
        with out_of_memory_ends_block(inference.device != HOST):
            return decided(boxes, inference)
        log.warning("out of memory on %s; scores are gathered in host memory", inference.device)
        inference = dataclasses.replace(inference, sums_device=HOST)
        return decided(boxes if planes is not None else _bands(shape, inference, halo=1), inference)


def infer_on_own_grid(
    network: nn.Module, volume: Tensor, geometry: Geometry, inference: Inference, *, planes: Planes | None = None
) -> Tensor:
    """What `infer_on_grid` gives of a prepared volume (C, D, H, W) on geometry.crop_shape, the voxels of its file."""
    nearest = thick_axis(geometry.prepared_spacing, geometry.spacing)
    return infer_on_grid(network, volume, geometry.crop_shape, inference, nearest=nearest, planes=planes)


def _in_one(size: Triple, inference: Inference) -> Inference:
    """One window for all of a volume that is padded to this size."""
    return dataclasses.replace(inference, window=size, mode="constant")


def _all_of(volume: Tensor) -> Box:
    return tuple(slice(0, side) for side in volume_shape(volume))


def padded_size(shape: Triple, inference: Inference) -> Triple:
    """What a volume is padded to: at least a training patch, so that an instance norm sees as much padding as it did
    in training.
    """
    depth, height, width = (
        max(patch, -(-size // unit) * unit)
        for size, patch, unit in zip(shape, inference.window, inference.divisor, strict=True)
    )
    return depth, height, width


def network_scores(network: nn.Module, image: Tensor, inference: Inference) -> Tensor:
    """(B, C, D, H, W) to (B, K, D, H, W) scores, averaged over mirrorings."""

    device, precision, dims = inference.device, inference.precision, inference.spatial_dims

    def once(image: Tensor) -> Tensor:
        image = to_layout(image, dims, memory_format(dims, inference.channels_last))
        with tensor_cores(device, precision), autocast(device, precision), gpu_forms(inference.fused_kernels):
            output = first_output(network(image), image.ndim)
        return output if dims == 3 else output[:, :, None]

    follow_cores()
    return averaged(once, inference.flip_axes)(image)


def inference_of(
    config: PlannedRun, *, spatial_dims: int, device: torch.device, classes: int, overlapping: bool = False
) -> Inference:
    """Inference settings of a run. classes: number of outputs. overlapping: whether the outputs are regions."""
    infer, variant, fused = config.infer, variant_of(config.train), config.train.fused_kernels
    return Inference(
        window=infer.patch,
        divisor=divisor(config.network),
        whole_up_to=math.prod(infer.patch),
        overlap=infer.overlap,
        batch_size=infer.batch_size or WINDOW_BATCH,
        flip_axes=infer.flip_axes,
        precision=variant.precision,
        channels_last=variant.channels_last,
        spatial_dims=spatial_dims,
        device=device,
        # Of a run on a CPU, whether they are faster on a GPU was not measured; in channels-last torch's norms are slow.
        fused_kernels=kind_of(device).triton and variant.channels_last and (True if fused is None else fused),
        overlapping=overlapping,
        classes=classes,
    )
