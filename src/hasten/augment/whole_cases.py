"""Random transforms that run on whole cases, sample by sample, as MONAI runs them, before anything is batched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Batch, ChainOp, PerSample, Stage
from hasten.augment.cucim import OnGpu
from hasten.augment.lower import name_of, names_of
from hasten.augment.op import op_key
from hasten.augment.store import as_number, number_of, storable
from hasten.cache.arena import Arena
from hasten.cache.chain import copy_item
from hasten.cache.dataset import ChainDataset
from hasten.observe.ranges import Range
from hasten.sample.order import cases_of
from hasten.sample.random import sample_key

_RANDOM = threading.RLock()
"""Lock: a transform has one random state, and torch and numpy one generator each, for all threads."""


def run_per_sample(stage: Stage, batch: Batch, key: Tensor) -> Batch:
    """Each sample through the transforms, their random states seeded by its key. key: (B, 2).

    Raises ValueError naming the transforms if the results have different shapes.
    """
    assert isinstance(stage, ChainOp)
    assert isinstance(stage.op, PerSample)
    seeds = op_key(key, stage.position)[:, 0].tolist()
    device = next(iter(batch.values())).device
    stays = all(isinstance(each, OnGpu) for each in stage.op.transforms)
    entries = {name: value if stays else value.cpu() for name, value in batch.items()}
    items = [
        run_one(stage.op.transforms, {name: value[row] for name, value in entries.items()}, seed)
        for row, seed in enumerate(seeds)
    ]
    return {name: value.to(device) for name, value in stacked(stage.op.transforms, items).items()}


def run_one(transforms: tuple[Any, ...], item: dict[str, Any], seed: int) -> Any:
    """Apply the transforms to an item; their random state is seeded with `seed`, a 32-bit word, and stays changed.

    torch's and numpy's generators, which other transforms draw from, are seeded too while a transform runs.
    """
    for number, each in enumerate(transforms):
        transform_seed = (seed + 0x9E3779B1 * number) % 2**32
        with _RANDOM, Range(name_of(each)), _seeded(transform_seed):
            if hasattr(each, "set_random_state"):
                each.set_random_state(state=np.random.RandomState(transform_seed))
            item = each(item)
    return item


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not a GPU's: the step draws from it meanwhile
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


def stacked(transforms: tuple[Any, ...], items: list[Any]) -> Batch:
    """The items' tensors and numbers stacked; entries that are neither are left out."""
    names = names_of(transforms)
    if any(not isinstance(item, dict) for item in items):
        raise ValueError(
            f"{names}: gives {type(items[0]).__name__} instead of one dict a sample; crops with several samples can't "
            "stand after the first crop"
        )
    batch: Batch = {}
    for name, first in items[0].items():
        if isinstance(first, torch.Tensor | np.ndarray):
            values = [torch.as_tensor(item[name]).as_subclass(Tensor) for item in items]
        elif as_number(first) is not None:
            values = [number_of(f"{names}, sample {row}", item, name) for row, item in enumerate(items)]
        else:
            continue
        if len({value.shape for value in values}) > 1:
            raise ValueError(
                f'{names}: changes the shape of "{name}" from sample to sample ({tuple(values[0].shape)} and others), '
                "so no batch can be made; crop or resize to one size after it"
            )
        batch[name] = torch.stack(values)
    return batch


_CASE, _SAMPLE = 0x50C4, 0x50C5
"""Positions that no operation of a chain has: for the transforms up to a crop, and for those after it."""
_APART = 0x61C88647
"""Difference between the seeds of neighbouring transforms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """Prepared cases by number."""

    count: int
    get: Callable[[int], Any]
    """The item, free to be changed."""
    name: Callable[[int], str]


def items_of_arena(arena: Arena) -> Items:
    """Cases of `arena` as items of "image" and "label", (C, *S)."""
    flat = all(shape[0] == 1 for shape in arena.shapes)

    def item(case: int) -> dict[str, Tensor]:
        image, label = arena.image(case), arena.label(case)[None]
        return {"image": image[:, 0] if flat else image, "label": label[:, 0] if flat else label}

    return Items(count=len(arena.ids), get=item, name=lambda case: arena.ids[case])


def items_of_lists(data: ChainDataset, each: int) -> Items:
    """Items of a deterministic part that returns a list for each row."""

    def patch(case: int) -> Any:
        patches = data.prepared(case // each)
        if len(patches) != each:
            raise ValueError(
                f"item {data.source(case // each)}: gives {len(patches)} patches where item {data.source(0)} "
                f"gives {each}"
            )
        return patches[case % each]

    def name(case: int) -> str:
        return f"item {data.source(case // each)}, patch {case % each}"

    return Items(count=len(data) * each, get=patch, name=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeCases:
    """Runs transforms on whole cases: (C, *S) tensors by key, one or several samples per case."""

    transforms: tuple[Any, ...]
    keys: tuple[str, ...]
    seed: int
    items: Items
    train_cases: tuple[int, ...]
    numbers: tuple[str, ...] = ()
    """Entries that are numbers, or arrays of another size than the images have."""

    @property
    def num_samples(self) -> int:
        """Samples that follow each other of one case."""
        return next((count for each in self.transforms if (count := _several(each))), 1)

    def batch(self, numbers: Sequence[int]) -> tuple[Batch, Batch]:
        """These samples of the stream, stacked: (B, C, *S) by key, and (B, ...) of entries that are not images."""
        batch = stacked(self.transforms, self.samples(numbers))
        return {key: storable(batch[key]) for key in self.keys}, {key: batch[key] for key in self.numbers}

    def samples(self, numbers: Sequence[int]) -> list[dict[str, Tensor]]:
        """Samples of the stream, numbers one after the other; a case that several come from is worked on once.

        Each is (C, *S) by key, and any shape for `self.numbers`. Raises RuntimeError naming the item where a transform
        fails, ValueError where it gives something else.
        """
        return [
            self._batch_entries(item, self.items.name(self._case(number // self.num_samples)))
            for number, item in zip(numbers, self.rows(numbers), strict=True)
        ]

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The outputs of the transforms for these samples."""
        crop = next((at for at, each in enumerate(self.transforms) if _several(each)), len(self.transforms) - 1)
        first, rest = self.transforms[: crop + 1], self.transforms[crop + 1 :]
        rows: list[dict[str, Any]] = []
        output: Any = None
        last = -1
        for number in numbers:
            item = number // self.num_samples
            case = self._case(item)
            if item != last:
                output, last = self._run(case, first, self.items.get(case), self._word(item, _CASE)), item
            if isinstance(output, list) and len(output) != self.num_samples:
                raise ValueError(
                    f"{names_of(first)}: gives {len(output)} samples of a case where {self.num_samples} are expected; "
                    "only MONAI's crops with num_samples may give several"
                )
            sample = output[number % self.num_samples] if isinstance(output, list) else output
            if rest:
                # Crops of one case may share its memory, which the transforms after them may write to.
                sample = self._run(case, rest, copy_item(sample), self._word(number, _SAMPLE), single=True)
            rows.append(sample)
        return rows

    def _batch_entries(self, sample: dict[str, Any], name: str) -> dict[str, Tensor]:
        """The entries of a sample that batches hold."""
        absent = [key for key in (*self.keys, *self.numbers) if key not in sample]
        if absent:
            raise ValueError(
                f'{names_of(self.transforms)}: gives no "{absent[0]}", only {sorted(map(str, sample))}; name what '
                "batches hold by keys"
            )
        images = {key: torch.as_tensor(sample[key]).as_subclass(Tensor).detach() for key in self.keys}
        return images | {key: number_of(name, sample, key) for key in self.numbers}

    def _run(self, case: int, transforms: tuple[Any, ...], data: Any, word: int, *, single: bool = False) -> Any:
        for number, each in enumerate(transforms):
            try:
                data = run_one((each,), data, (word + _APART * number) % 2**32)
            except Exception as error:
                cause = error.__cause__ or error
                message = f"{type(cause).__name__}: {cause}"
                raise RuntimeError(f"{self.items.name(case)}: {name_of(each)} failed: {message}") from error
            if single and isinstance(data, list):
                if len(data) != 1:
                    raise ValueError(f"{name_of(each)}: gives several samples of a sample; set its num_samples=1")
                data = data[0]
        return data

    def _case(self, item: int) -> int:
        at = cases_of(torch.tensor(self.seed), torch.tensor([item]), len(self.train_cases))
        return self.train_cases[int(at[0])]

    def _word(self, number: int, place: int) -> int:
        return int(op_key(sample_key(torch.tensor(self.seed), torch.tensor([number])), place)[0, 0])


def _several(transform: Any) -> int:
    """Number of samples that a crop returns for a case; 0 if it returns no list."""
    inner = getattr(transform, "transforms", ())
    num_samples = getattr(getattr(transform, "cropper", None), "num_samples", 0)
    return max([int(num_samples), *(_several(each) for each in inner)])
