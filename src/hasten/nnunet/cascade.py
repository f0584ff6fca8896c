"""The second stage of nnU-Net's cascade: the first stage's masks as channels of the image, and their augmentation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Batch

OPERATORS = ("dilation", "erosion", "closing", "opening")
OPERATOR_PROB, REMOVAL_PROB, LABEL_PROB = 0.4, 0.2, 0.5
RADIUS = (1.0, 8.0)
"""Voxels, of the ball that masks are dilated, eroded, opened or closed with."""
LARGEST_SHARE = 0.15
"""Share of the patch up to which components are removed; larger ones stay."""
_AHEAD = 2
"""Batches whose masks are changed while the step runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskChanges:
    """Random numbers of one patch, in the order in which they are applied."""

    operators: tuple[tuple[int, str, float], ...]
    """Position of the label, name of the operator, and radius."""
    removals: tuple[tuple[int, float], ...]
    """Position of the label, and which of its components: a number in [0, 1)."""

    def __bool__(self) -> bool:
        return bool(self.operators or self.removals)


def draw_changes(rng: np.random.Generator, num_labels: int) -> MaskChanges:
    """Changes drawn as in nnU-Net's trainer."""
    operators: list[tuple[int, str, float]] = []
    removals: list[tuple[int, float]] = []
    if rng.random() < OPERATOR_PROB:
        operators = [
            (label, str(rng.choice(OPERATORS)), float(rng.uniform(*RADIUS))) for label in _chosen(rng, num_labels)
        ]
    if rng.random() < REMOVAL_PROB:
        removals = [(label, float(rng.random())) for label in _chosen(rng, num_labels)]
    return MaskChanges(operators=tuple(operators), removals=tuple(removals))


def _chosen(rng: np.random.Generator, num_labels: int) -> list[int]:
    return [int(label) for label in rng.permutation(num_labels) if rng.random() < LABEL_PROB]


def change_masks(masks: Tensor, changes: MaskChanges) -> Tensor:
    """Apply the changes to the masks (L, *S) of one patch, in place.

    A mask that grows takes voxels from the others. nnU-Net's own operators do the work, on the box about the mask
    that they can change: most masks are small.
    """
    from batchgeneratorsv2.transforms.nnunet import random_binary_operator as nnunet

    transform = nnunet.ApplyRandomBinaryOperatorTransform(list(range(len(masks))))
    for label, operator, radius in changes.operators:
        box = _box(masks[label], 2 * ceil(radius) + 1)
        if box is not None:
            function = getattr(nnunet, f"binary_{operator}_torch")
            part = masks[(slice(None), *box)]
            transform._apply_to_image(part, apply_to_channels=[label], operators=[function], strel_size=[radius])
    for label, component in changes.removals:
        _remove_component(masks[label], component)
    return masks


def _box(mask: Tensor, margin: int) -> tuple[slice, ...] | None:
    """Box around the voxels of a mask; None if there are none."""
    voxels = mask.nonzero()
    if not len(voxels):
        return None
    low, high = (voxels.amin(0) - margin).clamp(min=0).tolist(), (voxels.amax(0) + margin + 1).tolist()
    return tuple(slice(first, last) for first, last in zip(low, high, strict=True))


def _remove_component(mask: Tensor, which: float) -> None:
    from skimage.measure import label as components_of

    components = components_of(mask.numpy().astype(bool))
    sizes = np.bincount(components.ravel())
    small = [number for number in range(1, len(sizes)) if sizes[number] < LARGEST_SHARE * mask.numel()]
    if small:
        mask[torch.from_numpy(components == small[int(which * len(small))])] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstStage:
    """How the first stage's label maps become channels of the image.

    labels: foreground labels, one channel each. seed: None for validation, whose masks stay as they are.
    """

    labels: tuple[int, ...]
    seed: int | None

    def masks(self, label_map: Tensor) -> Tensor:
        """(B, 1, *S) of labels with 1 added -> (B, L, *S) uint8."""
        return torch.cat([label_map == label + 1 for label in self.labels], dim=1).to(torch.uint8)

    def changes(self, step: int, batch_size: int) -> list[MaskChanges]:
        """The changes of each patch of a batch."""
        if self.seed is None:
            return []
        rngs = [np.random.default_rng([self.seed, step, position]) for position in range(batch_size)]
        return [draw_changes(rng, len(self.labels)) for rng in rngs]


def with_masks(batches: Iterator[Batch], stage: FirstStage, *, first: int, threads: int) -> Iterator[Batch]:
    """The batches of steps `first` ... with the masks of the first stage behind the channels of their images.

    Threads change the masks of the next batches on the host while the step runs: components have no fixed number, so
    this can't be part of the batch program. Only patches whose masks change leave the GPU.
    """
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="hasten-cascade") as pool:
        waiting: deque[tuple[Batch, Tensor, dict[int, Future[Tensor]]]] = deque()
        for step, batch in enumerate(batches, first):
            copied = {key: value.clone() for key, value in batch.items()}  # valid until the next one is requested
            masks = stage.masks(copied.pop("previous"))
            changes = stage.changes(step, len(masks))
            futures = {
                row: pool.submit(lambda row, each: change_masks(row.cpu().clone(), each), masks[row], each)
                for row, each in enumerate(changes)
                if each
            }
            waiting.append((copied, masks, futures))
            if len(waiting) > _AHEAD:
                yield _with_result(*waiting.popleft())
        while waiting:
            yield _with_result(*waiting.popleft())


def _with_result(batch: Batch, masks: Tensor, changed: dict[int, Future[Tensor]]) -> Batch:
    for row, future in changed.items():
        masks[row] = future.result().to(masks.device)
    image = batch["image"]
    return {**batch, "image": torch.cat([image, masks.to(image.dtype)], dim=1)}
