"""Label maps of whole volumes: small ones in padded batches, large ones by a sliding window."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from hasten.config.schema import Triple
from hasten.config.settled import PlannedRun
from hasten.nets.build import divisor
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.prediction.canvas import HOST, ArgmaxSink, Mode
from hasten.prediction.regrid import Planes, RegridSink, thick_axis
from hasten.prediction.scores import above_zero, averaged, first_output, highest
from hasten.prediction.windows import Box, Windows, available_bytes, bands, slide, slow_axis, volume_shape, widened
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
class Inference:
    """Inference settings: how a network is applied to volumes of any size."""

    patch: Triple
    """Window (D, H, W), a multiple of the network's divisor."""
    divisor: Triple
    whole_up_to: int
    """A volume of at most this many voxels, padded, goes through the network in one piece."""
    overlap: float
    batch_size: int
    precision: str
    channels_last: bool
    spatial_dims: int
    device: torch.device
    fused_kernels: bool = False
    """Whether convolutions and concatenations run in `gpu_forms`, on a GPU in channels-last; norms are switched by
    `fused_norms`."""
    mode: Mode = "gaussian"
    """How overlapping windows are blended."""
    flip_axes: tuple[int, ...] = ()
    """Axes (0 to 2 of D, H, W) along all of whose mirrorings scores are averaged."""
    sums_on_host: bool = False
    """Whether windows are summed in host memory from the start, and not only where the device has no room."""
    overlapping: bool = False
    """Whether the scores are of classes that may overlap, each held where its score is above 0."""
    classes: int = 0
    """Scores of each voxel. 0 is unknown: then a volume is never cut into bands to save memory."""
    sums_bytes: int | None = None
    """Bytes of scores that may be held at once; None takes half of the memory that is free."""


@torch.inference_mode()
def infer_labels(network: nn.Module, volumes: Sequence[Tensor], inference: Inference) -> Iterator[tuple[int, Tensor]]:
    """Yield (position in `volumes`, (D, H, W) uint8 class index on the device), each as soon as it is known.

    Where classes overlap, it is (K, D, H, W) bool, the voxels that each holds.

    volumes: (C, D, H, W) tensors of any float dtype, on any device. Windows of several large volumes share a batch;
    of scores, only those that still wait for a window are held. Where memory runs out, batches are halved, a volume
    that does not fit in one piece goes by windows, and at last sums are held on the host; each is logged.
    """
    several_parts = any(len(_parts(volume_shape(volume), inference, halo=0)) > 1 for volume in volumes)
    with _memory(inference, short=several_parts):
        # Only volumes that are padded to one size share a batch: a case's labels must not depend on its batch.
        groups: dict[Triple, list[int]] = {}
        large: list[int] = []
        for position, volume in enumerate(volumes):
            size = padded_size(volume_shape(volume), inference)
            (groups.setdefault(size, []) if prod(size) <= inference.whole_up_to else large).append(position)
        for size, group in groups.items():
            yield from _in_one_piece(network, volumes, group, size, inference, large)
        yield from _by_windows(network, volumes, large, inference)


def _by_windows(
    network: nn.Module, volumes: Sequence[Tensor], large: list[int], inference: Inference
) -> Iterator[tuple[int, Tensor]]:
    boxes = [
        (position, box) for position in large for box in _bands(volume_shape(volumes[position]), inference, halo=0)
    ]
    sinks: dict[int, ArgmaxSink] = {}

    def sink(number: int, shape: Triple) -> ArgmaxSink:
        decide = above_zero if inference.overlapping else highest
        return sinks.setdefault(boxes[number][0], ArgmaxSink(decide, shape, inference.device))

    results = slide(
        lambda batch, _: network_scores(network, batch, inference),
        (volumes[position] for position, _ in boxes),
        _windows(inference),
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


def _parts(shape: Triple, inference: Inference, *, halo: int) -> list[Box]:
    budget = inference.sums_bytes
    if budget is None:
        budget = available_bytes(HOST if inference.sums_on_host else inference.device) // 2
    return bands(shape, _windows(inference), inference.classes, budget, halo=halo)


def _bands(shape: Triple, inference: Inference, *, halo: int) -> list[Box]:
    parts = _parts(shape, inference, halo=halo)
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
    # With `planes` all scores of a plane are needed at once, so memory sets no limit.
    boxes = _bands(shape, inference if planes is None else dataclasses.replace(inference, sums_bytes=_NO_LIMIT), halo=1)
    with _memory(inference, short=len(boxes) > 1):
        if prod(padded_size(shape, inference)) <= inference.whole_up_to:
            with out_of_memory_ends_block():
                return _whole_on_grid(
                    network, volume, _sink_on_grid(shape, new_shape, inference, nearest, planes), inference
                )
            log.warning(_IN_PIECES, shape, inference.patch)
        with out_of_memory_ends_block(inference.device != HOST):
            return _slide_on_grid(network, volume, new_shape, inference, nearest, boxes, planes)
        log.warning("out of memory on %s; scores are gathered in host memory", inference.device)
        inference = dataclasses.replace(inference, sums_on_host=True)
        boxes = [*boxes] if planes is not None else _bands(shape, inference, halo=1)
        return _slide_on_grid(network, volume, new_shape, inference, nearest, boxes, planes)


def infer_on_own_grid(
    network: nn.Module, volume: Tensor, geometry: Geometry, inference: Inference, *, planes: Planes | None = None
) -> Tensor:
    """What `infer_on_grid` gives of a prepared volume (C, D, H, W) on geometry.crop_shape, the voxels of its file."""
    nearest = thick_axis(geometry.prepared_spacing, geometry.spacing)
    return infer_on_grid(network, volume, geometry.crop_shape, inference, nearest=nearest, planes=planes)


def _sink_on_grid(
    shape: Triple, new_shape: Triple, inference: Inference, nearest: int | None, planes: Planes | None, **part: Any
) -> RegridSink:
    device = HOST if inference.sums_on_host else inference.device
    axis = slow_axis(shape, _windows(inference))
    return RegridSink(
        shape, new_shape, device, axis=axis, nearest=nearest, overlapping=inference.overlapping, planes=planes, **part
    )


def _whole_on_grid(network: nn.Module, volume: Tensor, sink: RegridSink, inference: Inference) -> Tensor:
    shape = volume_shape(volume)
    scores, (place,) = _scores_of_whole(network, [volume], padded_size(shape, inference), inference)
    everything = slice(0, shape[0]), slice(0, shape[1]), slice(0, shape[2])
    sink.take(everything, scores[(0, slice(None), *place)], lambda: torch.ones(()))
    return sink.result()


def _slide_on_grid(
    network: nn.Module,
    volume: Tensor,
    new_shape: Triple,
    inference: Inference,
    nearest: int | None,
    boxes: Sequence[Box],
    planes: Planes | None,
) -> Tensor:
    shape, whole = volume_shape(volume), list[Tensor]()
    results = slide(
        lambda batch, _: network_scores(network, batch, inference),
        [volume] * len(boxes),
        _windows(inference),
        lambda number, _: _sink_on_grid(shape, new_shape, inference, nearest, planes, part=boxes[number], whole=whole),
        within=lambda number: widened(boxes[number], shape),
    )
    return [labels for _, labels in results][-1]


def _windows(inference: Inference) -> Windows:
    return Windows(
        window=inference.patch,
        overlap=(inference.overlap, inference.overlap, inference.overlap),
        batch_size=inference.batch_size,
        device=inference.device,
        mode=inference.mode,
        sums_device=torch.device("cpu") if inference.sums_on_host else None,
        reuse_constant=True,
    )


def padded_size(shape: Triple, inference: Inference) -> Triple:
    """What a volume is padded to: at least a training patch, so that an instance norm sees as much padding as it did
    in training.
    """
    depth, height, width = (
        max(patch, -(-size // unit) * unit)
        for size, patch, unit in zip(shape, inference.patch, inference.divisor, strict=True)
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


def _in_one_piece(
    network: nn.Module,
    volumes: Sequence[Tensor],
    group: list[int],
    size: Triple,
    inference: Inference,
    large: list[int],
) -> Iterator[tuple[int, Tensor]]:
    """Yield the labels of volumes that are padded to one size. Where not even one fits, the rest joins `large`."""
    at_once, first = inference.batch_size, 0
    while first < len(group):
        batch = group[first : first + at_once]
        results = list[Tensor]()
        with out_of_memory_ends_block():
            results = _whole(network, [volumes[at] for at in batch], size, inference)
        if results:
            yield from zip(batch, results, strict=True)
            first += len(batch)
        elif len(batch) > 1:
            at_once = len(batch) // 2
            log.warning("out of memory with %d volumes of %s at once; going on with %d", len(batch), size, at_once)
        else:
            log.warning(_IN_PIECES, size, inference.patch)
            large.extend(group[first:])
            return


def _whole(network: nn.Module, volumes: list[Tensor], size: Triple, inference: Inference) -> list[Tensor]:
    scores, places = _scores_of_whole(network, volumes, size, inference)
    labels = scores > 0 if inference.overlapping else scores.max(1)[1].to(torch.uint8)
    return [labels[(number, ..., *place)] for number, place in enumerate(places)]


def _scores_of_whole(
    network: nn.Module, volumes: list[Tensor], size: Triple, inference: Inference
) -> tuple[Tensor, list[tuple[slice, slice, slice]]]:
    """(B, K, *size) scores of volumes that are padded to one size, and where each of them lies in it."""
    batch = torch.zeros(len(volumes), volumes[0].shape[0], *size, device=inference.device)
    places = []
    for number, volume in enumerate(volumes):
        corner = [(room - side) // 2 for room, side in zip(size, volume_shape(volume), strict=True)]
        d, h, w = (slice(start, start + side) for start, side in zip(corner, volume_shape(volume), strict=True))
        batch[number, :, d, h, w] = volume.to(inference.device, torch.float32)
        places.append((d, h, w))
    return network_scores(network, batch, inference), places


def inference_of(
    config: PlannedRun, *, spatial_dims: int, device: torch.device, classes: int, overlapping: bool = False
) -> Inference:
    """Inference settings of a run. classes: number of outputs. overlapping: whether the outputs are regions."""
    infer, variant, fused = config.infer, variant_of(config.train), config.train.fused_kernels
    return Inference(
        patch=infer.patch,
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
        fused_kernels=device.type == "cuda" and variant.channels_last and (True if fused is None else fused),
        overlapping=overlapping,
        classes=classes,
    )
