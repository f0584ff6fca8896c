"""The augmentation of a run: from the settings `augment` to one chain of operations, checked before data are read.

Prepared cases hold two entries, "image" and "label" (classes), and a batch of a run holds the same.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from hasten.augment.chain import Batch, Chain, Fixed, PerSample, Warp, stages_of
from hasten.augment.crop import CropByPosNegLabel, CropOp, ForegroundCrop
from hasten.augment.explain import ExplainedTransform, explained, rows_table
from hasten.augment.grid import Mirror
from hasten.augment.lower import Context, is_random_crop, keys_of, name_of, names_of
from hasten.augment.maps import MapOp
from hasten.augment.op import ValueOp
from hasten.augment.presets import default_chain, preset_chain
from hasten.augment.steps import FUSED, PER_SAMPLE, ChainStep, LoweredChain, check_size, created_keys, plan_steps
from hasten.cache.chain import split_chain
from hasten.config.augment import chain_name, override_items
from hasten.config.schema import AugmentConfig, SampleConfig, Spacing, Triple
from hasten.config.user_code import load_user_code, require_same_source

_TARGET = re.compile(r"(\w+)(?:\[(\d+)\])?\.(\w+)")


KEYS, LABEL_KEYS = ("image", "label"), ("label",)
_NEEDED = ("label_key", "image_key", "w_key", "fg_indices_key", "bg_indices_key", "indices_key")
"""Attributes of MONAI's transforms that name entries besides `keys`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunChain:
    """The augmentation of every sample of a run."""

    chain: Chain
    """Hasten's operations, with the crop; without one where it is among `transforms`."""
    transforms: tuple[Any, ...]
    """Random transforms that run on whole cases, sample by sample, before the operations (`WholeCases.transforms`)."""
    steps: tuple[ExplainedTransform, ...]
    """Steps as the report and `hasten plan` list them."""
    digest: str
    """SHA-256 of the file or module that `augment.chain` names; "" of a preset."""

    @property
    def per_sample(self) -> tuple[ExplainedTransform, ...]:
        """The steps that run on the host, sample by sample."""
        return tuple(step for step in self.steps if step.how == PER_SAMPLE)

    def table(self) -> str:
        """The steps as text."""
        return rows_table(self.steps)


def run_chain(
    augment: AugmentConfig,
    sample: SampleConfig,
    *,
    patch: Triple,
    spatial_dims: int,
    num_channels: int,
    spacing: Spacing,
    ignore_index: int | None = None,
) -> RunChain:
    """The chain of a run with full patches. For the smaller ones of `sample.stages` see `with_patch`.

    patch: (D, H, W) voxels, in 2-D (1, H, W). spacing: (D, H, W) mm. ignore_index: of labelled voxels that no crop is
    centred on. Code that `augment.chain` names is executed.
    Raises ValueError, naming the setting, for a chain that a run can't use.
    """
    crop: CropOp = ForegroundCrop(size=patch, foreground_prob=sample.foreground_prob)
    digest, setting = "", chain_name(augment)
    if augment.chain:
        code = load_user_code(augment.chain, setting="augment.chain")
        digest = code.digest
        require_same_source(code, augment.digest, setting=setting)
        with _naming(setting):
            plan = _plan_of(code.value, patch, spatial_dims)
            usual = SampleConfig().foreground_prob
            if (plan.crop is not None or plan.source) and sample.foreground_prob != usual:
                raise ValueError(
                    f"the chain has a crop of its own, so that sample.foreground_prob={sample.foreground_prob} has no "
                    f"effect; leave the crop out, or set sample.foreground_prob={usual}"
                )
    else:
        if augment.preset == "default":
            chain = default_chain(sample, patch=patch, spatial_dims=spatial_dims, spacing=spacing)
        else:
            sizes = {"spatial_dims": spatial_dims, "num_channels": num_channels}
            chain = preset_chain(augment.preset, crop=crop, foreground_prob=sample.foreground_prob, **sizes)
        plan = _plan_of_ops(None if chain.crop == crop else chain.crop, chain.ops)
    plan = _overridden(plan, augment)
    if plan.crop is None and not plan.source:
        first = ChainStep(transform=crop, how=FUSED, why="sample.patch, sample.foreground_prob", ops=(crop,))
        plan = replace(plan, crop=crop, steps=(first, *plan.steps))
    with _naming(setting):
        chain = _chain_of(plan, patch, spatial_dims, num_channels)
        if isinstance(chain.crop, CropByPosNegLabel):
            chain = replace(chain, crop=replace(chain.crop, ignore_index=ignore_index))
        result = RunChain(chain=chain, transforms=plan.source, steps=explained(plan), digest=digest)
        if sample.batch_size is not None and sample.batch_size % chain.num_samples:
            raise ValueError(
                f"{name_of(chain.crop)}: num_samples={chain.num_samples} does not divide "
                f"sample.batch_size={sample.batch_size}; set num_samples=1, or another batch size"
            )
        for _, factor in sample.stages or ():
            depth, height, width = (max(1, round(side * factor)) for side in patch)
            with_patch(result, (depth, height, width))
    return result


def with_patch(run: RunChain, patch: Triple) -> RunChain:
    """`run` for patches of another size, of a stage (`sample.stages`). Raises ValueError if that is not possible."""
    crop = run.chain.crop
    if crop is None:
        raise ValueError(
            "sample.stages: the chain crops sample by sample, always to one size; make the crop its first random "
            "transform, or leave sample.stages out"
        )
    sized: CropOp = replace(crop, size=patch)  # type: ignore[type-var]  # every crop is a dataclass
    chain = replace(run.chain, crop=sized, ops=tuple(_sized_check(op, patch) for op in run.chain.ops))
    final = _final_size(chain, patch)
    if final != patch:
        raise ValueError(
            f"sample.stages: the chain makes patches of {list(final)} whatever comes in, so that a stage can't have "
            f"{list(patch)}; leave its crops and resizes to a fixed size out, or sample.stages"
        )
    return replace(run, chain=chain)


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def _overridden(plan: LoweredChain, augment: AugmentConfig) -> LoweredChain:
    first = () if plan.crop is None else (plan.crop,)
    crop, ops = plan.crop, with_overrides((*first, *plan.ops), augment.override)
    if plan.crop is not None:
        crop, ops = ops[0], ops[1:]
    steps = []
    for step in plan.steps:
        if step.how == FUSED and step.positions:
            step = replace(step, ops=tuple(ops[place] for place in step.positions))
        elif step.how == FUSED and step.ops:
            assert crop is not None
            step = replace(step, ops=(crop,))
        steps.append(step)
    return replace(plan, steps=tuple(steps), crop=crop, ops=ops)


def _chain_of(plan: LoweredChain, patch: Triple, spatial_dims: int, num_channels: int) -> Chain:
    """The operations, checked. Raises ValueError, naming the operation, where they don't fit a run."""
    for op in (*(() if plan.crop is None else (plan.crop,)), *plan.ops):
        needed = (getattr(op, "centred_on", None), getattr(op, "image_key", None))
        _check_keys(name_of(op), [*getattr(op, "keys", ()), *(key for key in needed if key is not None)], KEYS)
    chain = Chain(crop=plan.crop, ops=plan.ops, keys=KEYS, label_keys=LABEL_KEYS)
    final = _final_size(chain, patch if plan.crop is None else plan.crop.size)
    if final != patch:
        raise ValueError(
            f"makes patches of {list(final)}, and sample.patch is {list(patch)}; set sample.patch={list(final)}, or "
            "let the chain end with that size"
        )
    _check_draws(plan.ops, patch[3 - spatial_dims :], num_channels)
    if plan.source or any(isinstance(op, Fixed | PerSample) for op in plan.ops):
        check = partial(_check_batch, size=patch[3 - spatial_dims :], num_channels=num_channels)
        chain = replace(chain, ops=(*chain.ops, Fixed(name="check", apply=check)))
    return chain


def _final_size(chain: Chain, entering: Triple) -> Triple:
    """(D, H, W) of the output of the operations."""
    try:
        stages = stages_of(chain, entering)
    except ValueError as error:
        raise ValueError(f"{error} (sample.patch is {list(entering)})") from None
    return next(stage.out for stage in reversed(stages) if isinstance(stage, Warp))


def _check_draws(ops: Sequence[Any], space: tuple[int, ...], num_channels: int) -> None:
    """Draw once for one sample, so that an operation that doesn't support this number of channels or axes fails now."""
    for op in ops:
        axes = getattr(op, "spatial_axis", None) or getattr(op, "spatial_axes", None) or ()
        if not isinstance(op, Mirror) and any(not -len(space) <= axis < len(space) for axis in axes):
            raise ValueError(
                f"{name_of(op)}: axes {tuple(axes)}; patches have {len(space)}, counted from 0: name these"
            )
        if isinstance(op, ValueOp):
            channels = 1 if op.keys[:1] == LABEL_KEYS else num_channels
            try:
                op.draw(torch.zeros(1, 2, dtype=torch.int64), (channels, *space))
            except Exception as error:
                message = str(error) if isinstance(error, ValueError) else f"{name_of(op)}: draw raises {error!r}"
                raise ValueError(message) from error


def _check_batch(batch: Batch, size: tuple[int, ...], num_channels: int) -> Batch:
    """The two entries. Raises ValueError if opaque steps changed their shape."""
    for key, channels in zip(KEYS, (num_channels, 1), strict=True):
        if key not in batch:
            raise ValueError(f'augment.chain: leaves no "{key}" in the batch; select or keep both of {KEYS}')
        if tuple(batch[key].shape[1:]) != (channels, *size):
            raise ValueError(
                f'augment.chain: makes "{key}" {tuple(batch[key].shape[1:])}, and a run needs {(channels, *size)} '
                "(channels, voxels); let the chain end with that"
            )
    return {key: batch[key] for key in KEYS}


def _sized_check(op: Any, patch: Triple) -> Any:
    """A check within or at the end of a chain, for another size of patches."""
    apply = getattr(op, "apply", None)
    if not isinstance(apply, partial) or apply.func not in (_check_batch, check_size):
        return op
    size = patch[3 - len(apply.keywords["size"]) :]
    return replace(op, apply=partial(apply.func, **{**apply.keywords, "size": size}))


def _plan_of(value: Any, patch: Triple, spatial_dims: int) -> LoweredChain:
    """Whatever a chain file may hold, as operations: a Chain, a list of operations, MONAI's transforms, or their maker.

    patch: (D, H, W) that the run crops to where there is no crop. Raises ValueError for anything else.
    """
    from monai.transforms import Compose

    if inspect.isfunction(value):
        try:
            value = value()
        except TypeError as error:
            raise ValueError(f"is a function, and can't be called without arguments: {error}") from None
    if isinstance(value, Chain):
        if set(value.keys) != set(KEYS) or value.label_keys != LABEL_KEYS:
            raise ValueError(
                f"is a Chain with keys={value.keys}, label_keys={value.label_keys}; a run needs keys={KEYS}, "
                f"label_keys={LABEL_KEYS}"
            )
        return _plan_of_ops(value.crop, value.ops)
    members = value.transforms if isinstance(value, Compose) else value
    known = isinstance(members, list | tuple) and members and not any(isinstance(each, type) for each in members)
    if not known or not all(_is_op(member) or callable(member) for member in members):
        raise ValueError(
            f"is a {type(value).__name__}; a list of Hasten's operations, a Chain, or MONAI's random dictionary "
            "transforms are needed (augment.preset=none is a crop alone)"
        )
    of_hasten = [_is_op(member) for member in members]
    if not any(of_hasten):
        return _plan_of_monai(value, patch, spatial_dims)
    crop = members[0] if isinstance(members[0], CropOp) else None
    ops = tuple(members[1:] if crop is not None else members)
    if not all(of_hasten) or any(isinstance(op, CropOp) for op in ops):
        raise ValueError("mixes operations and transforms, or has a crop that is not the first; write one kind only")
    return _plan_of_ops(crop, ops)


def _is_op(value: Any) -> bool:
    return isinstance(value, CropOp | MapOp | ValueOp | Fixed | PerSample)


def _plan_of_ops(crop: CropOp | None, ops: Sequence[Any]) -> LoweredChain:
    """Operations as they are."""
    first = () if crop is None else (ChainStep(transform=crop, how=FUSED, ops=(crop,)),)
    steps = (ChainStep(transform=op, how=FUSED, ops=(op,), positions=(place,)) for place, op in enumerate(ops))
    return LoweredChain(steps=(*first, *steps), source=(), crop=crop, ops=tuple(ops))


def _plan_of_monai(transforms: Any, patch: Triple, spatial_dims: int) -> LoweredChain:
    """Random dictionary transforms lowered, those before a late crop left to run on whole cases."""
    cached = split_chain(list(transforms) if isinstance(transforms, list | tuple) else transforms)
    if cached.fixed:
        raise ValueError(
            f"{names_of(cached.fixed_transforms)}: does the same each time, before anything random; leave it out, as "
            "prepare.* does that work once a case"
        )
    _check_transforms(cached.compose.transforms)
    context = Context(keys=KEYS, label_keys=LABEL_KEYS, named=LABEL_KEYS, dims=spatial_dims)
    if not any(is_random_crop(each) for each in cached.compose.transforms):
        return plan_steps(cached, context, size=patch, whole=False)
    plan = plan_steps(cached, context)
    # The size of what transforms crop out of whole cases is checked with the first batch.
    return plan_steps(cached, context, size=patch, least=len(plan.source)) if plan.source else plan


def _check_transforms(transforms: Sequence[Any], before: Collection[str] = ()) -> None:
    """Raises ValueError for a transform of arrays, and for unknown keys."""
    from monai.transforms import Compose, MapTransform, Transform

    created = set(before)
    for each in transforms:
        if isinstance(each, Transform) and not isinstance(each, MapTransform | Compose):
            raise ValueError(
                f"{name_of(each)}: works on arrays; write {name_of(each)}d, with keys among {', '.join(KEYS)}"
            )
        needed = () if getattr(each, "allow_missing_keys", False) else keys_of(each)
        others = (getattr(each, name, None) for name in _NEEDED)
        _check_keys(name_of(each), [*needed, *(key for key in others if key is not None)], {*KEYS, *created})
        created |= set(created_keys(each))
        if isinstance(each, Compose):  # OneOf and the like
            _check_transforms(each.transforms, created)


def _check_keys(name: str, keys: Sequence[str], there: Collection[str]) -> None:
    """Raises ValueError for a key of the operation or transform `name` that is not among those that are there."""
    absent = [key for key in keys if key not in there]
    if absent:
        raise ValueError(
            f'{name}: needs "{absent[0]}", and the cases of a run have {" and ".join(KEYS)} only; name one of these, '
            "or leave it out"
        )


def with_overrides(ops: Sequence[Any], override: Mapping[str, Any]) -> tuple[Any, ...]:
    """The operations with these fields changed: "Gamma.prob" of each Gamma, "Gamma[0].prob" of the first.

    Raises ValueError for an unknown operation or field, with the closest names and all existing ones, and for an
    invalid value.
    """
    result = list(ops)
    for target, value in override_items(override).items():
        match = _TARGET.fullmatch(target)
        assert match is not None  # by the check of the settings
        name, number, field = match.groups()
        places = [place for place, op in enumerate(result) if _name(op) == name]
        if not places:
            there = _near(name, filter(None, map(_name, ops)), "the chain")
            raise ValueError(f"augment.override: {target}: no such operation{there}")
        if number is not None and int(number) >= len(places):
            raise ValueError(
                f"augment.override: {target}: the chain has {len(places)} {name}, counted from 0; write "
                f"{name}[{len(places) - 1}].{field}, or {name}.{field} for all of them"
            )
        for place in places if number is None else [places[int(number)]]:
            result[place] = _with_field(result[place], field, value, target)
    return tuple(result)


def _with_field(op: Any, field: str, value: Any, target: str) -> Any:
    fields = [each.name for each in dataclasses.fields(op) if each.init] if dataclasses.is_dataclass(op) else []
    if field not in fields:
        raise ValueError(f"augment.override: {target}: no such field{_near(field, fields, _name(op))}")
    try:
        return dataclasses.replace(op, **{field: _value_for(op, field, value)})
    except (ValueError, TypeError) as error:
        raise ValueError(f"augment.override: {target}: {error}") from None


def _value_for(op: Any, field: str, value: Any) -> Any:
    """The value converted to the field's type. Raises ValueError if it is invalid."""
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter(typing.get_type_hints(type(op))[field])
    except (NameError, PydanticUserError):  # of a user's operation, whose types may be anything
        return value
    try:
        validated = adapter.validate_python(value)
    except ValidationError as errors:
        rule = errors.errors()[0]["msg"].removeprefix("Input should be ")
        raise ValueError(f"must be {rule} (given {value})") from None
    if isinstance(value, bool) and not isinstance(validated, bool):
        raise ValueError(f"must be a number (given {value})")
    return validated


def _name(op: Any) -> str:
    """ "" of a step that has no settings of its own."""
    return "" if isinstance(op, Fixed | PerSample) else type(op).__name__


def _near(name: str, names: typing.Iterable[str], owner: str) -> str:
    there = list(dict.fromkeys(names))
    near = difflib.get_close_matches(name, there, n=2)
    return (f"; did you mean {' or '.join(near)}?" if near else ";") + f" {owner} has {', '.join(there) or 'none'}"
