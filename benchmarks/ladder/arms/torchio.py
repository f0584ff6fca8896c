"""TorchIO's queue of patches, as its documentation has it for training on patches, in a plain PyTorch loop.

docs.torchio.org, patches/patch_training: a SubjectsDataset of subjects whose transforms run in worker processes, a
Queue that these fill with patches of a sampler and shuffle, up to 300 of them, and a loader without workers that takes
batches from it. LabelSampler with half of the patches about background and half about foreground, shared by its
classes. AdamW at 1e-2 and DiceCE with mixed precision, as its tutorial with MONAI and Lightning has them (notebook
TorchIO_MONAI_PyTorch_Lightning); the network is the task's.
Not TorchIO's: volumes are resampled, windowed or normalised as the task says and not by a histogram; no augmentation
beyond the crop, which the ladder's rungs below Hasten's own have neither; foreground boxes and paddings to the patch
are small functions around its Crop and Pad; whole cases are predicted by MONAI's sliding window and scored by the
function that all arms share, in the place of GridSampler and GridAggregator. TorchIO keeps no prepared cases: each
epoch reads and prepares every file, in the workers; validation cases are kept in memory, as those of the other arms.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.ladder.record import Record, arm_arguments
from benchmarks.ladder.task import Task, TaskCase
from hasten.observe.clock import process_start_seconds

LEARNING_RATE = 1e-2
QUEUE = 300
"""Patches that the queue holds, at most."""


def main(argv: Sequence[str] | None = None) -> None:
    record = Record(arm="torchio", given=arm_arguments(str(__doc__).splitlines()[0], argv), notes=str(__doc__))
    try:
        import torchio  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError("--peer torchio: needs torchio; pip install 'hasten[peers]'") from None
    _train(record)


def _train(record: Record) -> None:
    import torch
    import torchio as tio

    from benchmarks.ladder.algorithms import fast_loss
    from benchmarks.ladder.chain import network_of, turned
    from benchmarks.ladder.loop import Arm, run, set_up

    given, task = record.given, record.given.task
    device = set_up(record)
    record.settled = {"learning_rate": LEARNING_RATE, "queue": min(QUEUE, task.patches_per_epoch)}
    record.seconds["import"] = process_start_seconds()
    start = time.perf_counter()
    validation = list(_volumes(task))
    queue = tio.Queue(
        tio.SubjectsDataset(_subjects(task.train), tio.Compose([*transforms(task), Padded(_xyz(task.patch, task, 1))])),
        max_length=min(QUEUE, task.patches_per_epoch),
        samples_per_volume=task.peer.crops,
        sampler=_sampler(task),
        num_workers=given.workers,
    )
    record.seconds["cache"] = time.perf_counter() - start
    net = network_of(task, xyz=True).to(device)
    arm = Arm(
        task=task,
        net=net,
        loss=fast_loss(task),
        optimizer=torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE),
        train=_Batches(task, tio.SubjectsLoader(queue, batch_size=task.peer.cases * task.peer.crops)),
        validation=validation,
        roi=turned(task.roi, task.spatial_dims),
        device=device,
        amp=True,
    )
    run(arm, record)


def _subjects(cases: Sequence[TaskCase]) -> list[Any]:
    import torchio as tio

    return [
        tio.Subject(
            image=tio.ScalarImage(case.image[0] if len(case.image) == 1 else list(case.image)),
            label=tio.LabelMap(case.label),
        )
        for case in cases
    ]


def transforms(task: Task) -> list[Any]:
    """TorchIO's transforms that prepare a case as the task says; labels come out as class index."""
    import torchio as tio

    prepare = task.prepare
    chain: list[Any] = []
    if prepare.orientation is not None and task.spatial_dims == 3:
        chain.append(tio.ToOrientation(prepare.orientation))
    if task.spacing is not None:
        chain.append(tio.Resample(_xyz(task.spacing, task, 1.0)))
    if prepare.intensity == "window":
        assert prepare.window is not None
        chain += [tio.Clamp(*prepare.window), tio.RescaleIntensity((0, 1), in_min_max=prepare.window)]
    if prepare.crop_foreground:
        chain.append(ForegroundBox(is_windowed=prepare.intensity == "window"))
    if prepare.intensity == "zscore":
        chain.append(tio.Lambda(_zscore, types_to_apply=[tio.INTENSITY]))
    values = sorted(task.labels)
    if values != list(range(len(values))):
        chain.append(tio.RemapLabels({value: number for number, value in enumerate(values)}))
    return chain


def _sampler(task: Task) -> Any:
    """Half of the patches about a voxel of the foreground, its classes alike."""
    import torchio as tio

    classes = len(task.labels) - 1
    shares = {0: 0.5, **dict.fromkeys(range(1, classes + 1), 0.5 / classes)}
    return tio.LabelSampler(_xyz(task.patch, task, 1), label_name="label", label_probabilities=shares)


def _xyz(sizes: Sequence[Any], task: Task, depth: Any) -> tuple[Any, ...]:
    """(D, H, W) as TorchIO's (W, H, D); its flat images have a depth of one voxel."""
    depth = sizes[0] if task.spatial_dims == 3 else depth
    return (sizes[2], sizes[1], depth)


def _zscore(image: Any) -> Any:
    """Each channel to mean 0 and standard deviation 1; `tio.ZNormalization` takes them over all channels."""
    image = image.float()
    axes = tuple(range(1, image.ndim))
    return (image - image.mean(axes, keepdim=True)) / image.std(axes, correction=0, keepdim=True).clamp(min=1e-8)


@dataclass(frozen=True)
class ForegroundBox:
    """Crop to the box of voxels above the lowest of their channel, or above 0 where a window was mapped to 0..1."""

    is_windowed: bool

    def __call__(self, subject: Any) -> Any:
        import torchio as tio

        from benchmarks.ladder.chain import above_lowest

        image = subject["image"].data
        inside = (image > 0 if self.is_windowed else above_lowest(image)).any(0)
        bounds: list[int] = []
        for axis in range(3):
            held = inside.any(tuple(other for other in range(3) if other != axis)).nonzero().flatten().tolist()
            bounds += [held[0], inside.shape[axis] - 1 - held[-1]] if held else [0, 0]
        return tio.Crop(tuple(bounds))(subject)


@dataclass(frozen=True)
class Padded:
    """Zeros around a case up to the size of a patch, (x, y, z)."""

    size: tuple[int, ...]

    def __call__(self, subject: Any) -> Any:
        import torchio as tio

        missing = [max(0, side - given) for side, given in zip(self.size, subject.spatial_shape, strict=True)]
        if not any(missing):
            return subject
        return tio.Pad(tuple(side for each in missing for side in (each // 2, each - each // 2)))(subject)


@dataclass(frozen=True)
class _Batches:
    """The queue's batches as the loop takes them."""

    task: Task
    loader: Any

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from benchmarks.ladder.record import class_masks

        for batch in self.loader:
            image, label = (_flat(batch[key]["data"], self.task) for key in ("image", "label"))
            if self.task.regions:
                label = class_masks(label[:, 0], self.task).transpose(0, 1).float()
            yield {"image": image.float(), "label": label}


def _volumes(task: Task) -> Iterator[dict[str, Any]]:
    """Validation cases, prepared."""
    import torchio as tio

    chain = tio.Compose(transforms(task))
    for subject in _subjects(task.validation):
        result = chain(subject)
        yield {key: _flat(result[key].data[None], task) for key in ("image", "label")}


def _flat(values: Any, task: Task) -> Any:
    """(B, C, x, y, z), or (B, C, x, y) of a 2-D task."""
    return values[..., 0] if task.spatial_dims == 2 else values


if __name__ == "__main__":
    main()
