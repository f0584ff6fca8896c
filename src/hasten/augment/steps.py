"""Plans how each transform of a chain runs: cached, fused into operations, or sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hasten.augment.chain import Batch, Fixed, PerSample
from hasten.augment.crop import CropOp
from hasten.augment.grid import Resize
from hasten.augment.lower import Context, Lowered, NotLowered, Undecided, is_random_crop, lower, name_of, names_of
from hasten.augment.lower.suffix import is_cucim
from hasten.augment.maps import MapOp
from hasten.augment.op import ValueOp
from hasten.cache.chain import SplitCompose
from hasten.config.schema import Triple

CACHED, FUSED, PER_SAMPLE = "cached", "fused", "per-sample"
_CACHED_WHY = "deterministic, and before anything random: done once for each case"

_RESHAPING = (
    "Affine BorderPad CenterScaleCrop CenterSpatialCrop CropForeground Crop DivisiblePad GridPatch GridSplit "
    "Orientation Pad Rand2DElastic Rand3DElastic RandAffine RandCrop RandGridPatch RandRotate RandScaleCrop "
    "RandZoom ResampleToMatch ResizeWithPadOrCrop Resize Rotate90 Rotate Spacing SpatialCrop SpatialPad "
    "SpatialResample SqueezeDim Transpose Zoom"
)
"""MONAI's transforms that may change the size of their input, besides random crops; names without the d."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainStep:
    """One transform of the user's chain."""

    transform: Any
    how: str
    why: str = ""
    ops: tuple[Any, ...] = ()
    """Hasten's crop or operations in place of it."""
    positions: tuple[int, ...] = ()
    """Positions of `ops` in the chain of operations; none for a crop."""
    undecided: bool = False
    """Whether it may be lowered once the size of the items is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredChain:
    """The result of lowering a chain."""

    steps: tuple[ChainStep, ...]
    source: tuple[Any, ...]
    """Transforms that run on whole cases, sample by sample, before any operation."""
    crop: CropOp | None
    ops: tuple[Any, ...]


def plan_steps(
    cached: SplitCompose, context: Context, *, size: Triple | None = None, least: int = 0, whole: bool = True
) -> LoweredChain:
    """size: (D, H, W) that operations start with where there is no crop among them, None while it is not known.

    least: the smallest number of random transforms that run on whole cases. whole: False for batches, which can't be
    cropped. Raises ValueError for invalid arguments, naming the transform.
    """
    transforms = cached.compose.transforms
    cached_steps = tuple(ChainStep(transform=each, how=CACHED, why=_CACHED_WHY) for each in transforms[: cached.fixed])
    rest = transforms[cached.fixed :]
    context = replace(context, fixed=cached.fixed_transforms)
    count = least
    while True:
        steps = [_source_step(each, context) for each in rest[:count]]
        patches = not whole or any(is_random_crop(each) for each in rest[:count])
        here = replace(context, size=size, opening=whole and count == 0, patches=patches)
        steps += _walk(cached, rest, count, here)
        needed = _needed(steps, count)
        if needed <= count:
            break
        count = needed
    numbered, crop, ops = _assemble(_with_reasons(steps, count), count, context, size)
    source = tuple(_transform_of(step) for step in steps[:count])
    return LoweredChain(steps=cached_steps + numbered, source=source, crop=crop, ops=ops)


def size_setting(cached: SplitCompose) -> int:
    """How many random transforms there are up to the last that gives samples one size; 0 where none does."""
    rest = cached.compose.transforms[cached.fixed :]
    names = ("Resized", "ResizeWithPadOrCropd", "RandAffined", "CenterSpatialCropd", "SpatialPadd", "Rand3DElasticd")
    sets = [is_random_crop(each) or (type(each).__name__ in names and _reshapes(each)) for each in rest]
    setting = [number for number, each in enumerate(sets, 1) if each]
    return max(setting, default=0)


def created_keys(transform: Any) -> tuple[str, ...]:
    """Entries that the transform adds to an item."""
    import monai.transforms as mt

    match transform:
        case mt.ConcatItemsd():
            return (transform.name,)
        case mt.CopyItemsd():
            return tuple(transform.names)
    return ()


def _source_step(transform: Any, context: Context) -> ChainStep:
    """A transform before the operations; `why` is set if it can't be lowered itself."""
    try:
        lowered = lower(transform, replace(context, opening=is_random_crop(transform)))
    except NotLowered as refusal:
        return ChainStep(transform=transform, how=PER_SAMPLE, why=str(refusal))
    crop = () if lowered.crop is None else (lowered.crop,)
    return ChainStep(transform=transform, how=PER_SAMPLE, ops=lowered.ops if is_cucim(transform) else crop)


def _walk(cached: SplitCompose, rest: Sequence[Any], first: int, context: Context) -> list[ChainStep]:
    steps = []
    for number in range(first, len(rest)):
        transform = rest[number]
        following = rest[number + 1] if number + 1 < len(rest) else None
        opening = context.opening and number == first
        here = replace(context, following=following, opening=opening)
        if opening and is_random_crop(transform):
            here = replace(here, size=None)
        try:
            lazily = cached.compose.lazy is True or (cached.compose.lazy is None and getattr(transform, "lazy", False))
            if lazily and cached.compose.overrides and hasattr(transform, "lazy"):
                raise NotLowered(f"runs lazily with overrides {cached.compose.overrides}")
            lowered = lower(transform, here)
        except NotLowered as refusal:
            undecided = isinstance(refusal, Undecided)
            steps.append(ChainStep(transform=transform, how=PER_SAMPLE, why=str(refusal), undecided=undecided))
            size = None if _reshapes(transform) else context.size
        else:
            per_sample = any(isinstance(op, PerSample) for op in lowered.ops)
            ops = lowered.ops if lowered.crop is None else (lowered.crop,)
            steps.append(
                ChainStep(transform=transform, how=PER_SAMPLE if per_sample else FUSED, why=lowered.note, ops=ops)
            )
            size = _size_after(transform, lowered, context.size)
        patches = context.patches or is_random_crop(transform)
        context = replace(context, size=size, patches=patches, created=context.created + created_keys(transform))
    return steps


def _size_after(transform: Any, lowered: Lowered, size: Triple | None) -> Triple | None:
    if lowered.crop is not None:
        return lowered.crop.size
    for op in lowered.ops:
        if isinstance(op, MapOp) and (size is not None or isinstance(op, Resize)):
            try:
                size = op.out_size(size or (1, 1, 1))
            except ValueError as error:
                raise ValueError(f"{name_of(transform)} can't be lowered: {error}") from None
    return size


def _reshapes(transform: Any) -> bool:
    if is_random_crop(transform):
        return True
    if type(transform).__name__ in ("RandAffined", "Rand2DElasticd", "Rand3DElasticd"):
        names = ("rand_affine", "rand_2d_elastic", "rand_3d_elastic")
        inner = next(getattr(transform, each) for each in names if hasattr(transform, each))
        return inner.spatial_size is not None
    if type(transform).__name__ in ("RandRotated", "RandZoomd"):
        inner = transform.rand_rotate if hasattr(transform, "rand_rotate") else transform.rand_zoom
        return not inner.keep_size
    return type(transform).__name__.removesuffix("d") in _RESHAPING.split()


def _needed(steps: Sequence[ChainStep], count: int) -> int:
    """How many transforms must run on whole cases, so that those after them know the size of their input."""
    needed = count
    for number, step in enumerate(steps):
        if number < count or step.how != PER_SAMPLE or step.ops:
            continue
        if is_random_crop(step.transform) or (_reshapes(step.transform) and _draws(steps[number + 1 :])):
            needed = number + 1
    return needed


def _draws(steps: Sequence[ChainStep]) -> bool:
    return any(isinstance(op, MapOp | ValueOp) for step in steps if step.how == FUSED for op in step.ops)


def _with_reasons(steps: Sequence[ChainStep], count: int) -> list[ChainStep]:
    """Adds a reason to each transform that runs on whole cases."""
    whys = (step.why or f"stands before {name_of(steps[count - 1].transform)}" for step in steps[:count])
    explained = [replace(step, ops=(), why=f"{why}; on whole cases") for step, why in zip(steps, whys, strict=False)]
    return [*explained, *steps[count:]]


def _assemble(
    steps: Sequence[ChainStep], count: int, context: Context, size: Triple | None
) -> tuple[tuple[ChainStep, ...], CropOp | None, tuple[Any, ...]]:
    """Steps with the positions of their operations, the crop, and the operations."""
    crop: CropOp | None = None
    ops: list[Any] = []
    assembled = list(steps[:count])
    for number in range(count, len(steps)):
        step = steps[number]
        if step.how == FUSED and step.ops and isinstance(step.ops[0], CropOp):
            crop = step.ops[0]
            size = crop.size
            assembled.append(step)
            continue
        step_ops = step.ops if step.how == FUSED or step.ops else (PerSample(transforms=(eager(step.transform),)),)
        merged = bool(ops) and all(isinstance(op, PerSample) for op in (ops[-1], *step_ops)) and len(step_ops) > 0
        if merged:
            ops[-1] = PerSample(transforms=ops[-1].transforms + step_ops[0].transforms)
            assembled.append(replace(step, positions=(len(ops) - 1,)))
            continue
        if ops and isinstance(ops[-1], PerSample) and step_ops and size is not None and _draws(steps[number:]):
            ops.append(_same_size(ops[-1], size, context))
        assembled.append(replace(step, positions=tuple(range(len(ops), len(ops) + len(step_ops)))))
        ops += step_ops
        for op in step_ops:
            if isinstance(op, MapOp) and size is not None:
                size = op.out_size(size)
    return tuple(assembled), crop, tuple(ops)


def _transform_of(step: ChainStep) -> Any:
    """A transform that runs on whole cases."""
    op = step.ops[0] if step.ops else None
    return op.transforms[0] if isinstance(op, PerSample) else eager(step.transform)


def eager(transform: Any) -> Any:
    """The transform as it runs outside of its chain: at once, where it would leave resampling pending."""
    import monai.transforms as mt

    return mt.Compose([transform]) if getattr(transform, "lazy", False) is True else transform


def _same_size(stage: PerSample, size: Triple, context: Context) -> Fixed:
    names = names_of(stage.transforms)
    return Fixed(name="size", apply=partial(check_size, names=names, size=size[3 - context.dims :], keys=context.keys))


def check_size(batch: Batch, names: str, size: tuple[int, ...], keys: tuple[str, ...]) -> Batch:
    """Raises ValueError where transforms that run sample by sample have changed the size."""
    for key in keys:
        if key in batch and tuple(batch[key].shape[2:]) != size:
            raise ValueError(
                f'{names}: changes "{key}" from {size} to {tuple(batch[key].shape[2:])} voxels, which the operations '
                "after it do not expect; move it to the end of the chain or before the crop"
            )
    return batch
