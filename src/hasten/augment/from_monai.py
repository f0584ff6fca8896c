"""Lowers the random part of a chain of MONAI's dictionary transforms to Hasten's operations."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain
from hasten.augment.crop import CentredCropOp
from hasten.augment.cucim import can_run
from hasten.augment.explain import explained, rows_table
from hasten.augment.lower import Context, is_random_crop, keys_of, name_of
from hasten.augment.make_program import CaseSource, augment_batch, cases_of_arena, make_program, segment_of_batch
from hasten.augment.program import Program
from hasten.augment.steps import PER_SAMPLE, LoweredChain, created_keys, plan_steps, size_setting
from hasten.augment.store import as_number, common_size, number_keys, size_of, store_of_batch, store_of_items
from hasten.augment.whole_cases import Items, WholeCases, items_of_arena, items_of_lists
from hasten.cache.arena import Arena, Store
from hasten.cache.chain import SplitCompose, split_chain
from hasten.cache.dataset import CacheDataset, ChainDataset
from hasten.cache.identity import chain_identity
from hasten.devices import kind_of
from hasten.sample.share import WHOLE, Share

log = logging.getLogger(__name__)

_LABELS = ("label", "seg", "mask")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformProgram:
    """A lowered chain of transforms; `bind` it to data, or call it on batches."""

    cached: SplitCompose
    plan: LoweredChain
    context: Context
    optional: tuple[str, ...] = ()
    """Keys that batches hold only if items have them as images."""
    strict: bool = False
    only_keys: bool = False
    """Whether the keys were named, so that batches hold nothing else."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The entries of a batch."""
        return self.context.keys

    @property
    def label_keys(self) -> tuple[str, ...]:
        """The entries of a batch that hold classes."""
        return self.context.label_keys

    @property
    def chain(self) -> Chain:
        """Hasten's operations, with the crop."""
        return Chain(crop=self.plan.crop, ops=self.plan.ops, keys=self.context.keys, label_keys=self.context.label_keys)

    def explain(self) -> str:
        """A table: each transform, how it runs, why, and Hasten's operation for it."""
        labels = ", ".join(self.label_keys) or "none"
        return f"{rows_table(explained(self.plan))}\n\nbatch: {', '.join(self.keys)} (classes: {labels})"

    def bind(
        self,
        data: Any,
        *,
        batch_size: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        train_cases: Sequence[int] | None = None,
        share: Share = WHOLE,
        spans: bool = False,
    ) -> Program:
        """Batches of this data: `program(step)` and `program.batches(first, last)` give (B, C, *S) by key on `device`.

        Other entries of items that are numbers, or arrays of one shape, are (B, ...), unless `keys` were named. A
        deterministic part that gives several patches of a row, as GridSplitd, makes each of them an item.

        data: one of Hasten's cached data sets made with the same chain; rows, which the deterministic part is run on
        once; or an arena of prepared cases (keys image and label). They are moved to `device`, but those of an arena,
        which stay where they are. train_cases: positions in it that are drawn from, None for all. share,
        spans: see `make_segment`. Raises ValueError where data and chain do not fit.
        """
        items, arena = _items_of(data, self.cached)
        cases = tuple(range(items.count)) if train_cases is None else tuple(train_cases)
        if not cases or min(cases) < 0 or max(cases) >= items.count:
            raise ValueError(f"train_cases: there are {items.count} cases; name some of 0 to {items.count - 1}")
        here = self._for_item(items.get(0), items.name(0), torch.device(device))
        numbers = () if self.only_keys or arena is not None else _numbers(items, here)
        if self.only_keys:
            numbers = tuple(key for key in self.context.keys if key not in here.context.keys)
        options: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "train_cases": cases, "device": device}
        options |= {"share": share, "spans": spans}
        if not here.plan.source:
            if arena is not None:
                bound = cases_of_arena(arena, here.context.dims)
            else:
                bound = CaseSource(store=here._store(items, numbers).to(device))
            here = here if here.plan.crop is not None else here._for_size(bound.store)
            if not here.plan.source:
                return make_program(here.chain, bound, **options)
        drawn: dict[str, Any] = {"seed": seed, "items": items, "train_cases": cases, "numbers": numbers}
        source = WholeCases(transforms=here.plan.source, keys=here.context.keys, **drawn)
        return here._lower_after(source, options)

    def __call__(self, batch: Mapping[str, Tensor], *, seed: int, first: int = 0) -> Batch:
        """The random part on a batch (B, C, *S) by key that a loader gave: samples `first` ... `first` + B - 1.

        Runs where the batch lies. Entries that the chain does not name stay as they are. Raises ValueError for a chain
        with a crop, or one that must begin with whole cases.
        """
        entries = {key: batch[key] for key in self.context.keys if key in batch and batch[key].ndim > 2}
        absent = [key for key in self.context.keys if key not in batch and key not in self.optional]
        if absent or not entries:
            raise ValueError(f"the batch has no {absent or list(self.context.keys)}, only {sorted(map(str, batch))}")
        value = next(iter(entries.values()))
        context = self._context_for(entries, value.ndim - 2, value.device)
        plan = plan_steps(self.cached, context, size=size_of(entries), whole=False)
        if plan.source:
            first_name = name_of(plan.source[-1])
            raise ValueError(f"{first_name} must see whole cases, not batches; use bind(data, ...) for this chain")
        here = replace(self, plan=_checked(plan, self.strict), context=context)
        segment = segment_of_batch(here.chain, entries, seed, value.device)
        rest = {key: value for key, value in batch.items() if key not in entries}
        return {**rest, **augment_batch(segment, entries, first)}

    def _for_item(self, item: Any, name: str, device: torch.device) -> TransformProgram:
        """The chain lowered for items like this one."""
        if not isinstance(item, Mapping):
            raise ValueError(
                f"{name}: is a {type(item).__name__}; items must be dictionaries, which the chain works on"
            )
        size = next((item[key].shape[1:] for key in self.context.keys if _is_image(item.get(key))), None)
        fits = {key: _is_image(item.get(key)) and item[key].shape[1:] == size for key in self.context.keys}
        present = [key for key in self.context.keys if key not in self.optional or fits[key]]
        if self.only_keys:
            present = [key for key in present if _axes(item.get(key)) > 2]
        if not present:
            raise ValueError(f"{name}: none of {list(self.context.keys)} is an image (C, *S); name the keys by keys")
        value: Any = item.get(present[0])
        dims = value.ndim - 1 if _is_image(value) else self.context.dims
        context = self._context_for({key: item.get(key) for key in present}, dims, device)
        plan = _checked(plan_steps(self.cached, context), self.strict)
        return replace(self, plan=plan, context=context, optional=())

    def _context_for(self, entries: Mapping[str, Any], dims: int, device: torch.device) -> Context:
        """The context of these entries, by key, of a batch or an item; None is one that the transforms make."""
        labels = tuple(key for key in self.context.label_keys if key in entries)
        in_bytes = tuple(key for key, value in entries.items() if str(getattr(value, "dtype", "")).endswith("uint8"))
        keys: dict[str, Any] = {"keys": tuple(entries), "label_keys": labels, "bytes_keys": in_bytes}
        cucim = not self.strict and kind_of(device).nvidia and can_run()
        return replace(self.context, dims=dims, cucim=cucim, **keys)

    def _for_size(self, store: Store) -> TransformProgram:
        """This program, without a crop, lowered for the size that all items have or that a transform gives them."""
        try:
            size, least = common_size(store), 0
        except ValueError:
            size, least = None, size_setting(self.cached)
            if not least:
                raise
        plan = plan_steps(self.cached, self.context, size=size, least=least)
        return replace(self, plan=_checked(plan, self.strict))

    def _store(self, items: Items, numbers: Sequence[str]) -> Store:
        crop = self.plan.crop
        extra = [crop.centred_on, getattr(crop, "image_key", None)] if isinstance(crop, CentredCropOp) else []
        keys = [*self.context.keys, *(key for key in extra if key and key not in self.context.keys)]
        rows = ((items.name(number), items.get(number)) for number in range(items.count))
        return store_of_items(rows, keys, [key for key in numbers if key not in keys])

    def _lower_after(self, source: WholeCases, options: dict[str, Any]) -> Program:
        """A program whose operations are lowered for the output of the transforms on whole cases."""
        source = self._with_made(source)
        batch, _ = source.batch([0])
        context = replace(self.context, dims=next(iter(batch.values())).ndim - 2)
        plan = plan_steps(self.cached, context, size=size_of(batch), least=len(source.transforms))
        if len(plan.source) > len(source.transforms):
            return self._lower_after(replace(source, transforms=plan.source), options)
        labels = tuple(key for key in context.label_keys if key in source.keys)
        cases = CaseSource(store=store_of_batch(batch, "cpu"), whole_cases=source)
        chain = Chain(crop=None, ops=_checked(plan, self.strict).ops, keys=source.keys, label_keys=labels)
        return make_program(chain, cases, **{**options, "train_cases": None})

    def _with_made(self, source: WholeCases) -> WholeCases:
        """The source with the numbers that its transforms make: all of them, or those that were named."""
        row, known = source.rows([0])[0], {*source.keys, *source.numbers, *source.items.get(0)}
        if self.only_keys:
            made = [key for key in source.keys if _axes(row.get(key)) < 3]
        else:
            made = [key for key in row if key not in known and _axes(row[key]) == 0]
        images = tuple(key for key in source.keys if key not in made)
        return replace(source, keys=images, numbers=(*source.numbers, *made))


def compile_transforms(
    chain: Any, *, strict: bool = False, label_keys: Sequence[str] | None = None, keys: Sequence[str] | None = None
) -> TransformProgram:
    """Lower the random part of a chain of MONAI's dictionary transforms to Hasten's operations.

    What comes before the first random transform is cached; of the rest, each is fused into the operations on whole
    batches, or runs sample by sample as MONAI runs it, with a reason (`explain`).

    Args:
        chain: a MONAI `Compose`, or a sequence of transforms.
        strict: raise ValueError instead of running anything sample by sample.
        label_keys: the keys that hold classes; None finds them by the crops' label_key, by modes and by name.
        keys: what batches hold; None takes what the transforms name.

    Raises:
        ValueError: for arguments that can't be, naming the transform.

    Example:
        >>> from monai import transforms as mt
        >>> program = hasten.compile_transforms([mt.LoadImaged(["image"]), mt.RandGaussianNoised(["image"], prob=0.2)])
    """
    cached = split_chain(chain)
    names, optional = batch_keys(cached, keys)
    labels = label_keys_of(cached, names) if label_keys is None else check_label_keys(label_keys, names)
    named = () if label_keys is None else labels
    context = Context(keys=names, label_keys=labels, named=named, dims=_dims(cached), cucim=not strict and can_run())
    plan = _checked(plan_steps(cached, context), strict, final=False)
    return TransformProgram(
        cached=cached, plan=plan, context=context, optional=optional, strict=strict, only_keys=keys is not None
    )


def _checked(plan: LoweredChain, strict: bool, *, final: bool = True) -> LoweredChain:
    """The plan itself. Raises ValueError naming the first transform that runs sample by sample, if `strict`.

    final: whether the sizes that may decide it are known.
    """
    unlowered = (step for step in plan.steps if step.how == PER_SAMPLE and (final or not step.undecided))
    step = next(unlowered, None)
    if strict and step is not None:
        raise ValueError(f"{name_of(step.transform)} can't be lowered: it {step.why}; leave it out, or strict=False")
    return plan


def _dims(cached: SplitCompose) -> int:
    """Number of spatial axes, from the sizes in the transforms' arguments; 3 where they have none."""
    for each in cached.compose.transforms:
        parts = [getattr(each, name, None) for name in ("cropper", "padder", "resizer", "rand_affine")]
        inner = [getattr(one, name, None) for one in parts for name in ("cropper", "padder")]
        sizes = (getattr(one, name, None) for one in (*parts, *inner) for name in ("spatial_size", "roi_size"))
        dims = next((len(size) for size in sizes if isinstance(size, Sequence) and len(size) in (2, 3)), None)
        if dims is not None:
            return dims
    return 3


def _items_of(data: Any, cached: SplitCompose) -> tuple[Items, Arena | None]:
    """Prepared items. Raises ValueError where a data set was made with another chain, or there is nothing in it."""
    if isinstance(data, Arena):
        return items_of_arena(data), data
    if not isinstance(data, ChainDataset):
        if isinstance(data, str | Mapping) or not isinstance(data, Sequence):
            raise ValueError(
                f"data is a {type(data).__name__}; give rows, one of Hasten's cached data sets, or an arena"
            )
        data = CacheDataset(data, cached.compose, progress=False)
    elif not _same_chain(data.chain, cached):
        raise ValueError(
            f"the {type(data).__name__} was made with another chain: its deterministic part differs from that of the "
            "program; make both from the same Compose"
        )
    if not len(data):
        raise ValueError("there are no items to make batches from; give the program a data set that is not empty")
    first = data.prepared(0)
    if isinstance(first, list) and first:
        return items_of_lists(data, len(first)), None
    return Items(count=len(data), get=data.prepared, name=lambda case: f"item {data.source(case)}"), None


def _same_chain(one: SplitCompose, other: SplitCompose) -> bool:
    if one.fixed != other.fixed:
        return False
    pairs = zip(one.fixed_transforms, other.fixed_transforms, strict=True)
    return all(mine is yours for mine, yours in pairs) or chain_identity(one) == chain_identity(other)


def _numbers(items: Items, here: TransformProgram) -> tuple[str, ...]:
    """Entries that batches hold beside the images; a warning names those that they can't."""
    item, last = items.get(0), items.get(items.count - 1)
    candidates, others = number_keys(item, here.context.keys)
    cropped = here.plan.crop is not None or bool(here.plan.source)
    # Entries that crops take their centres from are of another length in each case.
    centres = ("fg_indices_key", "bg_indices_key", "indices_key")
    read = {getattr(each, name, None) for each in here.cached.compose.transforms for name in centres}
    candidates = [key for key in candidates if key not in read]
    alike = [key for key in candidates if np.ndim(item[key]) < 2 or np.shape(item[key]) == np.shape(last.get(key))]
    # Whole volumes beside cropped patches are left out of the batch.
    numbers = [key for key in alike if not (cropped and _is_image(item[key]))]
    others += [key for key in candidates if key not in numbers]
    if others:
        names = ", ".join(f'"{key}"' for key in others)
        log.warning("batches hold images and numbers, and not the entries %s of an item", names)
    return tuple(numbers)


def _axes(value: Any) -> int:
    """Axes of a number (0) or an array; 9 for anything else."""
    return getattr(as_number(value), "ndim", 9)


def _is_image(value: Any) -> bool:
    return getattr(value, "ndim", 0) in (3, 4)


def batch_keys(cached: SplitCompose, requested: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Entries of a batch, and those of them that a batch holds only if items have them as images.

    Raises ValueError if the chain names no keys.
    """
    if requested is not None:
        names = _as_tuple(requested)
        if not names:
            raise ValueError("keys is empty; name the entries that batches are to hold")
        return names, ()
    rest = cached.compose.transforms[cached.fixed :]
    created = _created(rest)
    sure = _ordered(key for each in rest if _changes(each) for key in keys_of(each) if key not in created)
    if any(is_random_crop(each) for each in rest):
        return sure, ()
    # Without a crop, entries that the random part does not change belong to the batch as well.
    images = [each for each in (*cached.fixed_transforms, *rest) if _names_images(each)]
    maybe = _ordered(key for each in images for key in keys_of(each) if key not in sure and key not in created)
    if not sure and not maybe:
        raise ValueError(
            "no transform of the chain names keys: use those that end in d (RandFlipd), or name entries by keys"
        )
    return sure + maybe, maybe


def label_keys_of(cached: SplitCompose, keys: Sequence[str]) -> tuple[str, ...]:
    """The keys that a crop looks for classes in, that are read with `nearest` beside others that are not, or that are
    named like one."""
    candidates: list[str] = []
    for each in cached.compose.transforms[cached.fixed :]:
        candidates += [getattr(each, "label_key", None) or ""]
        modes = getattr(each, "mode", None)
        if isinstance(modes, tuple) and len(modes) == len(keys_of(each)):
            nearest = [key for key, mode in zip(keys_of(each), modes, strict=True) if str(mode).startswith("nearest")]
            candidates += nearest if len(nearest) < len(modes) else []
    candidates += [key for key in keys if any(word in key.lower() for word in _LABELS)]
    return tuple(key for key in keys if key in candidates)


def check_label_keys(requested: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """Raises ValueError for a key that batches do not hold."""
    names = _as_tuple(requested)
    absent = [key for key in names if key not in keys]
    if absent:
        raise ValueError(f'label_keys: "{absent[0]}" is not among the keys of the batch {list(keys)}')
    return names


def _as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _created(transforms: Sequence[Any]) -> set[str]:
    """Entries that the transforms add to an item. What one of them reads before is replaced, not added."""
    created: set[str] = set()
    read: set[str] = set()
    for each in transforms:
        if _names_images(each) or created_keys(each):
            read |= set(keys_of(each))
        created |= set(created_keys(each)) - read
    return created


def _changes(transform: Any) -> bool:
    """Whether it changes its keys, beyond conversion and selection, so that they must be in the batch."""
    import monai.transforms as mt

    converting = mt.EnsureTyped | mt.CastToTyped | mt.ToTensord | mt.ToNumpyd | mt.ToCupyd | mt.ToDeviced | mt.Identityd
    return not isinstance(transform, converting | mt.SelectItemsd | mt.DeleteItemsd)


def _names_images(transform: Any) -> bool:
    import monai.transforms as mt

    return not isinstance(transform, mt.SelectItemsd | mt.DeleteItemsd | mt.CopyItemsd)


def _ordered(keys: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(key) for key in keys))
