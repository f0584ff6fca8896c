"""Sources of a data module and their loaders: a data set that Hasten prepares, or files with MONAI transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.augment.compile import compile_transforms
from hasten.augment.program import Program
from hasten.cache.dataset import CacheDataset, ChainDataset
from hasten.cache.key import digest
from hasten.config.schema import RunConfig
from hasten.feed.feed import Feed
from hasten.sample.share import Share
from hasten.training.plan import RunPlan, plan_run, with_train
from hasten.training.prepare_cases import arena_of
from hasten.training.sampling import choose_program

Batch = dict[str, Tensor]
Feeding = Callable[[int, int], Iterable[Mapping[str, Tensor]]]
"""The batches of steps `first` ... `last` - 1."""


class StepLoader:
    """An epoch is the next `length` batches of a stream that any step of can be the first one.

    `position` is the number of batches that were given out: the step that comes next. What is left of an epoch that
    the Trainer ends early is the beginning of the next one. is_fixed: every epoch has the batches of the first.
    """

    def __init__(self, feed: Feeding, length: int, *, position: int = 0, is_fixed: bool = False) -> None:
        self._feed, self._length = feed, length
        self._fixed = position if is_fixed else None
        self.position = position

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Generator[Batch, None, None]:
        # A generator reads the position when its first batch is requested: iterators are created earlier than that.
        first = self.position = self.position if self._fixed is None else self._fixed
        for batch in self._feed(first, first + self._length):
            self.position += 1
            yield dict(batch)

    def state_dict(self) -> dict[str, Any]:
        """Lightning treats a loader that has this as resumable; the data module stores more."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: the data module has restored the position already."""


class CaseLoader:
    """Whole cases one by one, as batches of one: tensors by key, and the case's name as `id`, a list of one."""

    def __init__(self, case: Callable[[int], Mapping[str, Tensor]], ids: Sequence[str], indices: Sequence[int]) -> None:
        """case: the tensors (1, C, ...) of a case. indices: those of this process."""
        self._case, self._ids, self._indices = case, ids, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in self._indices:
            yield {**self._case(number), "id": [self._ids[number]]}


def rank_indices(count: int, rank: int, size: int) -> tuple[int, ...]:
    """Positions of one rank's cases of `count`: as many for each, as ranks must make the same number of steps.

    Where the number is not divisible, the first ones occur twice, as with Lightning's own sampler.
    """
    each = -(-count // size)
    return tuple((number * size + rank) % count for number in range(each)) if count else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDevice:
    """Rank, number of ranks and device that batches are made for."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def share(self) -> Share:
        """Lightning accumulates over batches and not over pieces of one."""
        return Share(self.rank, self.size)


class PlannedSource:
    """A data set and the settings of a run, as `hasten train` takes them. Methods are those of `Source`."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._planned: RunPlan | None = None
        self._arena: Any = None

    def planned(self, device: torch.device | None = None) -> RunPlan:
        """The run with its plan. device: the Trainer's; None takes train.device."""
        if self._planned is None or (device is not None and self._planned.device != device):
            name = self.config.train.device if device is None else str(device)
            self._planned = plan_run(replace(self.config, train=replace(self.config.train, device=name)))
        return self._planned

    def settings(self) -> dict[str, Any]:
        """Settings that determine the batches, whatever the number of ranks: a resumed run must have the same."""
        planned = self.planned()
        sample = asdict(replace(planned.config.sample, compile=None))
        return {
            "train.seed": planned.config.train.seed,
            "sample.batch_size": planned.config.sample.batch_size,
            "sample": digest(sample),
            "training cases": digest([case.id for case in planned.train]),
        }

    def prepare(self, device: torch.device) -> None:
        """Fill the cache; one process of a host does it for all."""
        planned = self.planned(device)
        arena_of(replace(planned, config=replace(planned.config, cache=replace(planned.config.cache, home="file"))))

    def open(self, place: RankDevice) -> None:
        """Open the prepared cases."""
        self._arena = arena_of(self.planned(place.device))

    def feed(self, place: RankDevice, steps: int) -> tuple[Feeding, int]:
        """Training batches, and how many of them are an epoch. steps: of the whole training, 0 if that isn't known."""
        planned = self.planned(place.device)
        if steps:
            planned = with_train(planned, steps=steps)
        planned, program, _ = choose_program(planned, self._arena, place.share)
        return partial(_feed, program), math.ceil(len(planned.train) / planned.config.sample.batch_size)

    def validation(self, place: RankDevice) -> CaseLoader | None:
        """Whole cases; None where there are none."""
        planned, arena = self.planned(place.device), self._arena
        ids = tuple(case.id for case in planned.validation)
        cases, flat = arena.index(ids), planned.case_set.spatial_dims == 2

        def case(number: int) -> Batch:
            image = arena.image(cases[number])[None].to(place.device, torch.float32)
            label = arena.label(cases[number])[None, None].to(place.device)
            return {"image": image[:, :, 0], "label": label[:, :, 0]} if flat else {"image": image, "label": label}

        return CaseLoader(case, ids, rank_indices(len(ids), place.rank, place.size))

    def close(self) -> None:
        """Release the cases."""
        self._arena = None


@dataclass(kw_only=True, slots=True)
class ChainSource:
    """Rows of files, or a cached data set of Hasten's, with a MONAI chain whose random part runs on whole batches."""

    train: Any
    compose: Callable[..., Any]
    validation_rows: Sequence[Mapping[str, Any]]
    validation_compose: Callable[..., Any] | None
    batch_size: int
    seed: int
    compile: bool
    _train_set: Any = field(default=None, init=False)
    _validation_set: Any = field(default=None, init=False)

    def settings(self) -> dict[str, Any]:
        return {"seed": self.seed, "batch_size": self.batch_size, "training cases": len(self.train)}

    def prepare(self, device: torch.device) -> None:
        """Each process keeps the cases in its own memory."""

    def open(self, place: RankDevice) -> None:
        if self._train_set is None:
            is_set = isinstance(self.train, ChainDataset)
            self._train_set = self.train if is_set else CacheDataset(self.train, self.compose, progress=False)
        if self._validation_set is None and self.validation_compose is not None:
            indices = rank_indices(len(self.validation_rows), place.rank, place.size)
            rows = [self.validation_rows[number] for number in indices]
            self._validation_set = CacheDataset(rows, self.validation_compose, progress=False)

    def feed(self, place: RankDevice, steps: int) -> tuple[Feeding, int]:
        program = compile_transforms(self.compose).bind(
            self._train_set,
            batch_size=self.batch_size,
            seed=self.seed,
            device=place.device,
            compile=self.compile,
            share=place.share,
        )
        return partial(_feed, program), math.ceil(len(self._train_set) * program.latest.num_samples / self.batch_size)

    def validation(self, place: RankDevice) -> CaseLoader | None:
        cached = self._validation_set
        if cached is None:
            return None
        indices = rank_indices(len(self.validation_rows), place.rank, place.size)

        def case(number: int) -> Batch:
            item = cached[number]
            tensors = {key: value for key, value in item.items() if isinstance(value, Tensor)}
            return {key: value.as_subclass(Tensor)[None].to(place.device) for key, value in tensors.items()}

        names = [_name_of(self.validation_rows[number]) for number in indices]
        return CaseLoader(case, names, range(len(indices)))

    def close(self) -> None:
        """The cases stay, as preparing them again would take as long as the first time."""


def _feed(program: Program, first: int, last: int) -> Feed:
    return Feed(program, first=first, last=last)


Source = PlannedSource | ChainSource
"""A source of training and validation cases."""


def _name_of(row: Mapping[str, Any]) -> str:
    """The row's own id, or the name of its first file."""
    if "id" in row:
        return str(row["id"])
    files = [value for value in row.values() if isinstance(value, str | Path)]
    return Path(files[0]).name.removesuffix(".gz").rpartition(".")[0] if files else ""
