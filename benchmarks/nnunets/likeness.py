"""Whether Hasten's patches are like nnU-Net's: features of many of each, from the same cases, and how far they differ.

nnU-Net's side is its own data loader with its own transforms, composed by its trainer; Hasten's side is what its
trainer for nnU-Net makes. Both begin with the same numbers of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

BANDS = 6
"""Of the radial power spectrum, from the lowest frequencies to the highest that all axes have."""
OPERATIONS = {
    "spatial": ("SpatialTransform", "Spatial"),
    "mirroring": ("MirrorTransform", "Mirror"),
    "noise": ("GaussianNoiseTransform", "GaussianNoise"),
    "blur": ("GaussianBlurTransform", "Blur"),
    "brightness": ("MultiplicativeBrightnessTransform", "Brightness"),
    "contrast": ("ContrastTransform", "Contrast"),
    "low resolution": ("SimulateLowResolutionTransform", "SimulateLowResolution"),
    "gamma": ("GammaTransform", "Gamma"),
}
"""batchgeneratorsv2's class and Hasten's of each operation."""
_BATCH = 2
_FOREGROUND = 0.33


@dataclass(frozen=True, slots=True)
class Setting:
    """What nnU-Net's trainer makes of a plan's patch size."""

    patch: tuple[int, ...]
    rotation: tuple[float, float]
    in_plane: bool
    initial: tuple[int, ...]
    mirror_axes: tuple[int, ...]


def setting_of(patch: Sequence[int]) -> Setting:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    stand_in = SimpleNamespace(
        configuration_manager=SimpleNamespace(patch_size=list(patch)), print_to_log_file=lambda *_: None
    )
    rotation, in_plane, initial, axes = nnUNetTrainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size(
        stand_in
    )
    return Setting(tuple(patch), rotation, in_plane, tuple(map(int, initial)), axes)


def nnunet_patches(
    dataset: Any, setting: Setting, labels: Sequence[int], count: int, only: str = ""
) -> Iterator[tuple[Any, Any]]:
    """Image (C, *S) and label (1, *S) of each patch. dataset: as nnU-Net's; labels: those of its cases.

    only: one of `OPERATIONS`, in every patch, without the others.
    """
    from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    transforms = nnUNetTrainer.get_training_transforms(
        setting.patch, setting.rotation, None, setting.mirror_axes, setting.in_plane
    )
    if only:
        transforms.transforms = [each for each in transforms.transforms if _alone(each, OPERATIONS[only][0])]
    manager = SimpleNamespace(all_labels=list(labels), has_ignore_label=False)
    loader = nnUNetDataLoader(
        dataset, _BATCH, setting.initial, setting.patch, manager, oversample_foreground_percent=_FOREGROUND,
        transforms=transforms,
    )  # fmt: skip
    for _ in range(math.ceil(count / _BATCH)):
        batch = loader.generate_train_batch()
        yield from zip(batch["data"].numpy(), batch["target"].numpy(), strict=True)


def _alone(transform: Any, name: str) -> bool:
    """Whether it stays where one operation is looked at; that one then happens in every patch, on every channel.

    The spatial one stays, as it cuts out the patch; it rotates and scales always or never.
    """
    inside = getattr(transform, "transform", transform)
    kind = type(inside).__name__
    if kind == "SpatialTransform":
        inside.p_rotation = inside.p_scaling = float(kind == name)
        return True
    if kind == name:
        transform.apply_probability = 1.0
        inside.p_per_channel = 1.0
    return kind == name or kind not in {each for each, _ in OPERATIONS.values()}


def _own_alone(chain: Any, name: str) -> Any:
    """The chain with that operation in every patch, and no other."""
    always = {"rotate_prob": 1.0, "scale_prob": 1.0} if name == "Spatial" else {"prob": 1.0}
    always = {} if name == "Mirror" else always
    return replace(chain, ops=tuple(replace(op, **always) for op in chain.ops if type(op).__name__ == name))


def own_patches(dataset: Any, setting: Setting, count: int, seed: int, only: str = "") -> Iterator[tuple[Any, Any]]:
    """As `nnunet_patches`."""
    import torch

    from hasten.augment.make_program import CaseSource, make_program
    from hasten.nnunet.batches import Augmentation, Batches, chain_of
    from hasten.nnunet.cases import read_cases
    from hasten.nnunet.crop import NnunetCrop

    size, initial = ((1, *each)[-3:] for each in (setting.patch, setting.initial))
    crop = NnunetCrop(size=size, initial_size=initial, batch_size=_BATCH, forced=1)
    augmentation = Augmentation(
        rotate_deg=math.degrees(max(setting.rotation)), mirror_axes=setting.mirror_axes, in_plane=setting.in_plane
    )
    store = read_cases(dataset, spatial_dims=len(setting.patch))
    chain = chain_of(store, crop, augmentation)
    if only:
        chain = _own_alone(chain, OPERATIONS[only][1])
    program = make_program(chain, CaseSource(store=store), batch_size=_BATCH, seed=seed, device=torch.device("cpu"))
    source = Batches(program=program, first=0, scales=None)
    for _ in range(math.ceil(count / _BATCH)):
        batch = next(source)
        yield from zip(batch["data"].numpy(), batch["target"].numpy(), strict=True)


def features(image: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Moments, log10 of the power in each band of frequencies, and the label's share and overlap with the image.

    image, label: (*S) of one channel. overlap: correlation of the image with the foreground, 0 without any.
    """
    values = image.astype(np.float64)
    mean, deviation = values.mean(), values.std() + 1e-9
    scaled = (values - mean) / deviation
    power = np.abs(np.fft.fftn(scaled)) ** 2 / scaled.size
    radius = np.sqrt(sum(np.square(each) for each in np.meshgrid(*map(np.fft.fftfreq, image.shape), indexing="ij")))
    band = np.minimum((radius / 0.5 * BANDS).astype(int), BANDS)
    inside = label > 0
    overlap = (scaled * (inside - inside.mean())).mean() / (inside.std() + 1e-9)
    return {
        "mean": mean, "deviation": deviation, "skewness": (scaled**3).mean(), "kurtosis": (scaled**4).mean(),
        **{f"power_{number}": math.log10(power[band == number].mean() + 1e-9) for number in range(BANDS)},
        "foreground": inside.mean(), "overlap": overlap,
    }  # fmt: skip


def series(patches: Iterator[tuple[Any, Any]]) -> dict[str, list[float]]:
    """The features of the first channel of each patch, by name."""
    results: dict[str, list[float]] = {}
    for image, label in patches:
        for name, value in features(image[0], label[0]).items():
            results.setdefault(name, []).append(float(value))
    return results


def distances(one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Largest difference between the two distribution functions of each feature (Kolmogorov-Smirnov)."""
    from scipy.stats import ks_2samp

    return {name: float(ks_2samp(values, other[name]).statistic) for name, values in one.items()}


def limit(count: int) -> float:
    """Which of these distances two samples of one distribution, `count` each, exceed once in 1,000 times."""
    return math.sqrt(-math.log(0.001 / 2) / count)
