"""TorchIO's arm: the nearest equivalents of nnU-Net's augmentation.

What TorchIO lacks is left out, so that it does less: brightness and contrast factors, gamma that restores the mean and
standard deviation or that works on the inverted image. What differs: low resolution is along one axis drawn at random
(RandomAnisotropy), where nnU-Net reduces all three; the inverse of the scaling factor and the logarithm of gamma are
drawn uniformly; labels are resampled by the nearest neighbour. RandomAffine cannot resample into a smaller grid: it
computes the larger patch, of which the middle is then kept.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import torch

from benchmarks.augments.loaders import drawn, endless
from benchmarks.augments.patches import Batch, Case, Nnunet, check_room

Loader = Literal["processes", "queue", "inline"]
"""`processes`: SubjectsLoader with workers, a patch is cut and then transformed; `queue`: TorchIO's guide to
patch-based training: the whole volume is transformed in workers and `SAMPLES` patches are cut from it; `inline`: as
`processes`, made at `next`."""
SAMPLES = 4
SUBJECTS = 10**5
"""Of the queue, so that its workers need not be started anew."""


def nnunet(cases: Sequence[Case], work: Nnunet, *, loader: Loader = "processes", workers: int = 2) -> Iterator[Batch]:
    """Batches of `work.batch` patches; labels uint8."""
    check_room(cases, work.source)
    if loader == "queue":
        return _run(_queue(cases, work, workers))
    dataset = _Patches(cases, work.source, transform(work))
    return _run(_patches(dataset, work, workers if loader == "processes" else 0))


def transform(work: Nnunet, *, crop: bool = True) -> Any:
    """`crop`: to the middle of what was cut first. Transforms write into their subject (`copy=False`): it is theirs."""
    import torchio as tio

    rotate = {"degrees": work.rotate_deg}
    smallest, largest = work.scale_range
    scale = {"scales": (1 / largest, 1 / smallest), "isotropic": True}  # above 1 objects get larger here
    shared: dict[str, Any] = {"image_interpolation": "linear", "default_pad_value": 0, "copy": False}
    still: dict[str, Any] = {"scales": 0, "degrees": 0}
    moves = [tio.RandomAffine(**(still | chosen | shared)) for chosen in (rotate, scale, rotate | scale)]
    neither, *probs = work.spatial_probs()
    moved = [tio.OneOf(dict(zip(moves, probs, strict=True)), p=1 - neither, copy=False)] if neither < 1 else []
    low, high = work.lowres_scale
    return tio.Compose([
        *moved,
        *([tio.CropOrPad(work.patch, copy=False)] if crop else []),
        tio.RandomNoise(std=work.noise_std, p=work.noise_prob, copy=False),
        tio.RandomBlur(std=work.blur_sigma, p=work.blur_prob * work.channel_prob, copy=False),
        tio.RandomAnisotropy(
            axes=(0, 1, 2), downsampling=(1 / high, 1 / low), p=work.lowres_prob * work.channel_prob, copy=False
        ),
        tio.RandomGamma(
            log_gamma=tuple(math.log(value) for value in work.gamma_range),
            p=work.gamma_prob + work.gamma_inverted_prob, copy=False,
        ),
        tio.RandomFlip(axes=(0, 1, 2), flip_probability=work.flip_prob, copy=False),
    ], copy=False)  # fmt: skip


@dataclass(slots=True)
class _Patches(torch.utils.data.Dataset[Any]):
    """A patch of the case at random. TorchIO's own sampler would copy the whole case first."""

    cases: Sequence[Case]
    side: int
    transform: Any

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Any:
        import torchio as tio

        case = self.cases[index]
        corner = [int(torch.randint(length - self.side + 1, (1,))) for length in case.image.shape[1:]]
        box = (slice(None), *(slice(start, start + self.side) for start in corner))
        return self.transform(_subject(tio, case.image[box].clone(), case.label[box].clone()))


def _subject(tio: Any, image: torch.Tensor, label: torch.Tensor) -> Any:
    return tio.Subject(image=tio.ScalarImage(tensor=image), label=tio.LabelMap(tensor=label))


def _patches(dataset: _Patches, work: Nnunet, workers: int) -> Generator[Any]:
    import torchio as tio

    return endless(
        tio.SubjectsLoader(dataset, batch_size=work.batch, sampler=drawn(dataset, work.batch), num_workers=workers)
    )


def _queue(cases: Sequence[Case], work: Nnunet, workers: int) -> Generator[Any]:
    """The queue holds one batch, so that every `next` fills it anew and no batch is made beforehand of many."""
    import torchio as tio

    subjects = [_subject(tio, case.image, case.label) for case in cases]
    many = [subjects[index] for index in torch.randint(len(subjects), (SUBJECTS,)).tolist()]
    queue = tio.Queue(
        tio.SubjectsDataset(many, transform=transform(work, crop=False)), max_length=work.batch,
        samples_per_volume=min(SAMPLES, work.batch), sampler=tio.UniformSampler(work.patch), num_workers=workers,
        shuffle_subjects=False,
    )  # fmt: skip
    return endless(tio.SubjectsLoader(queue, batch_size=work.batch, num_workers=0))


def _run(result: Generator[Any]) -> Iterator[Batch]:
    import torchio as tio

    with closing(result):
        for item in result:
            yield item["image"][tio.DATA], item["label"][tio.DATA]
