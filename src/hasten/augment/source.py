"""Batches of a chain whose first random transforms run on whole cases, sample by sample, as MONAI runs them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain, Warp
from hasten.augment.draw import Draws, draw_stages
from hasten.augment.op import op_key
from hasten.augment.per_sample import run_one, stacked
from hasten.augment.program import ChainProgram, make_chain_program
from hasten.augment.store import Store
from hasten.cache.chain import fresh
from hasten.config.schema import Triple
from hasten.sample.order import cases_of
from hasten.sample.random import sample_key
from hasten.sample.share import WHOLE, Share, share_mistake

_KEPT = (torch.float16, torch.float32, torch.int16, torch.uint8)
_CASE, _SAMPLE = 0x50C4, 0x50C5
"""Places that no operation of a chain has: of the transforms up to a crop, and of those after it."""
_APART = 0x61C88647
"""Between the seeds of neighbouring transforms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """Prepared cases by number."""

    count: int
    get: Callable[[int], Any]
    """The item, free to be changed."""
    name: Callable[[int], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Transforms on whole cases and what they give: (C, *S) tensors by key, several samples a case or one."""

    transforms: tuple[Any, ...]
    keys: tuple[str, ...]
    seed: int
    items: Items
    train_cases: tuple[int, ...]

    @property
    def num_samples(self) -> int:
        """Samples that follow each other of one case."""
        return next((found for each in self.transforms if (found := _several(each))), 1)

    def sample(self, number: int) -> dict[str, Tensor]:
        """One sample of the stream."""
        return self.samples([number])[0]

    def samples(self, numbers: Sequence[int]) -> list[dict[str, Tensor]]:
        """Samples of the stream, numbers one after the other; a case that several come from is worked on once.

        Raises RuntimeError naming the item where a transform fails, ValueError where it gives something else.
        """
        crop = next((at for at, each in enumerate(self.transforms) if _several(each)), len(self.transforms) - 1)
        found: list[dict[str, Tensor]] = []
        given, last = None, -1
        for number in numbers:
            item = number // self.num_samples
            if item != last:
                given, last = self._given(item, self.transforms[: crop + 1]), item
            own = given[number % self.num_samples] if isinstance(given, list) else given
            found.append(self._finished(item, own, number, self.transforms[crop + 1 :]))
        return found

    def _given(self, item: int, transforms: tuple[Any, ...]) -> Any:
        case = self._case(item)
        given = self._run(case, transforms, self.items.get(case), self._word(item, _CASE))
        if isinstance(given, list) and len(given) != self.num_samples:
            raise ValueError(
                f"{_names(transforms)}: gives {len(given)} samples of a case where {self.num_samples} are expected; "
                "only MONAI's crops with num_samples may give several"
            )
        return given

    def _finished(self, item: int, given: Any, number: int, transforms: tuple[Any, ...]) -> dict[str, Tensor]:
        if transforms:
            # Crops of one case may share its memory, which the transforms after them may write to.
            given = self._run(self._case(item), transforms, fresh(given), self._word(number, _SAMPLE), single=True)
        absent = [key for key in self.keys if key not in given]
        if absent:
            raise ValueError(
                f'{_names(self.transforms)}: gives no "{absent[0]}", only {sorted(map(str, given))}; name what batches '
                "hold by keys"
            )
        return {key: _tensor(given[key]) for key in self.keys}

    def _run(self, case: int, transforms: tuple[Any, ...], given: Any, word: int, *, single: bool = False) -> Any:
        for number, each in enumerate(transforms):
            try:
                given = run_one((each,), given, (word + _APART * number) % 2**32)
            except Exception as error:
                cause = error.__cause__ or error
                told = f"{type(cause).__name__}: {cause}"
                raise RuntimeError(f"{self.items.name(case)}: {_names((each,))} failed: {told}") from error
            if single and isinstance(given, list):
                if len(given) != 1:
                    raise ValueError(f"{_names((each,))}: gives several samples of a sample; set its num_samples=1")
                given = given[0]
        return given

    def _case(self, item: int) -> int:
        at = cases_of(torch.tensor(self.seed), torch.tensor([item]), len(self.train_cases))
        return self.train_cases[int(at[0])]

    def _word(self, number: int, place: int) -> int:
        return int(op_key(sample_key(torch.tensor(self.seed), torch.tensor([number])), place)[0, 0])


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledProgram:
    """As `ChainProgram`: `program(step)` gives the batch of that step, whatever was asked for before."""

    source: Source
    rest: ChainProgram
    """The operations after the source. Its store stands for the form of a batch."""
    batch_size: int
    share: Share = WHOLE

    @property
    def device(self) -> torch.device:
        return self.rest.device

    def __call__(self, step: int) -> Batch:
        """(B, C, *S) by key: samples step * B ... step * B + B - 1 of the stream."""
        return next(self.batches(step, step + 1))

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1."""
        for step in range(first, last):
            numbers = self.share.numbers(step, self.batch_size)
            samples = self.source.samples(numbers)
            yield through(self.rest, stacked(self.source.transforms, samples), numbers[0], numbers)

    def shared(self, share: Share) -> SampledProgram:
        """As that of `ChainProgram`."""
        mistake = share_mistake(self.batch_size, share.pieces, share.size)
        if mistake:
            raise ValueError(mistake)
        return replace(self, share=share)


def through(program: ChainProgram, batch: Batch, first: int, numbers: Sequence[int] | None = None) -> Batch:
    """A batch of samples `first` ... through the operations of a chain without a crop. batch: (B, C, *S) by key.

    numbers: of the samples, where they are not in a row. Raises ValueError where its form is not that which the program
    was made for.
    """
    own = {key: batch[key] for key in program.chain.keys}
    store, first_stage = batch_store(own, program.seed.device), program.stages[0]
    assert isinstance(first_stage, Warp)
    if store.channels != program.store.channels or size_of(own) != first_stage.size:
        raise ValueError(
            f"a batch has {dict(store.channels)} channels and {size_of(own)} voxels, the program was made for "
            f"{dict(program.store.channels)} and {first_stage.size}; samples must be alike"
        )
    size = store.shape.shape[0]
    device = program.seed.device
    in_a_row = numbers is None or numbers[-1] - numbers[0] == size - 1
    sample = torch.arange(first, first + size, device=device) if in_a_row else torch.tensor(numbers, device=device)
    key = sample_key(program.seed, sample)
    with torch.no_grad():
        stages = draw_stages(program.stages, key, store.channels, store.spatial_dims)
    draws = Draws(
        case=torch.arange(size, device=device), start=torch.zeros(size, 3, dtype=torch.int64, device=device), key=key,
        stages=stages,
    )  # fmt: skip
    return replace(program, store=store).rendered(draws)


def batch_store(batch: Mapping[str, Tensor], device: torch.device) -> Store:
    """A batch (B, C, *S) as B cases of one size. Raises ValueError naming the entry that does not fit."""
    first = next(iter(batch.values()))
    for key, value in batch.items():
        if value.ndim not in (4, 5) or value.shape[2:] != first.shape[2:] or len(value) != len(first):
            raise ValueError(
                f'"{key}" has shape {tuple(value.shape)}, "{next(iter(batch))}" {tuple(first.shape)}; a batch is '
                "(B, C, H, W) or (B, C, D, H, W), its entries with the same B and the same voxels"
            )
    moved = {key: _kept(value).to(device) for key, value in batch.items()}
    dims, size = first.ndim - 2, len(first)
    sides = (1, *first.shape[2:])[-3:]
    shape = torch.stack([torch.full((size,), side, dtype=torch.int64, device=device) for side in sides], dim=1)
    return Store(
        values={key: value.reshape(-1) for key, value in moved.items()},
        channels={key: value.shape[1] for key, value in batch.items()}, shape=shape,
        offset=torch.arange(size, device=device) * (sides[0] * sides[1] * sides[2]), spatial_dims=dims,
        ids=tuple(f"sample {number}" for number in range(size)),
    )  # fmt: skip


def size_of(batch: Mapping[str, Tensor]) -> Triple:
    """(D, H, W) of a batch."""
    depth, height, width = (1, *next(iter(batch.values())).shape[2:])[-3:]
    return depth, height, width


def bare_program(
    chain: Chain, batch: Mapping[str, Tensor], seed: int, device: torch.device | str, **options: Any
) -> ChainProgram:
    """A program for `through`, of batches like this one. options: of `make_chain_program`."""
    store = batch_store(batch, torch.device(device))
    return make_chain_program(chain, store, batch_size=len(store.ids), seed=seed, device=device, **options)


def _kept(value: Tensor) -> Tensor:
    plain = value.as_subclass(Tensor).detach()
    return plain if plain.dtype in _KEPT else plain.to(torch.float32)


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(value).as_subclass(Tensor).detach()


def _several(transform: Any) -> int:
    """How many samples a crop lists for a case; 0 for what gives no list."""
    inner = getattr(transform, "transforms", ())
    own = getattr(getattr(transform, "cropper", None), "num_samples", 0)
    return max([int(own), *(_several(each) for each in inner)])


def _names(transforms: Sequence[Any]) -> str:
    return ", ".join(getattr(each, "__name__", type(each).__name__) for each in transforms)
