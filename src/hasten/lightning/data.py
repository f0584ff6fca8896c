"""`HastenDataModule`: Hasten's batches for a Lightning Trainer."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from hasten.augment.program import Program
from hasten.cache.arena import Arena
from hasten.cache.key import digest
from hasten.config.load import load_run, load_source
from hasten.config.resume_rules import flat
from hasten.config.schema import RunConfig
from hasten.feed.feed import Feed
from hasten.runtime.device import pick_device
from hasten.sample.share import Share
from hasten.training.choose.batch_program import choose_program
from hasten.training.plan import RunPlan, plan_run, with_train
from hasten.training.prepare_cases import arena_of

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Names of the package: the same code, but with classes that don't know each other."""


_OF_LIGHTNING = {
    "train.accumulate": "Lightning accumulates; set Trainer(accumulate_grad_batches=...) and leave it 1",
    "sample.fit_batch": "Lightning makes the steps; find the size with its own Tuner.scale_batch_size",
    "sample.stages": "the stages are shares of a run that Lightning may end anywhere; leave them out",
    "distribute.parts": "not under Lightning, whose ranks see all cases; leave it 0",
}
"""Settings that the Trainer decides, or that need the length of the whole run."""


def lightning_package() -> ModuleType:
    """The one that the script has imported; else the first that is installed.

    Raises ImportError naming the extra where there is none.
    """
    for name in _PACKAGES:
        imported = sys.modules.get(name)
        if imported is not None:
            return imported
    for name in _PACKAGES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise ImportError("hasten.lightning needs Lightning: pip install 'hasten[lightning]' (or pytorch-lightning)")


class HastenDataModule(lightning_package().LightningDataModule):  # type: ignore[misc]
    """Training batches {"image": (B, C, D, H, W) float32, "label": (B, 1, D, H, W) uint8}, for 2-D (B, C, H, W), made
    on the Trainer's device, and validation cases whole, one a batch, with their names as `id`.

    A batch is a function of (data, settings, step): a run that resumes from a checkpoint, even in the middle of an
    epoch, gets the same batches as without the interruption, and skips none to get there. `sample.batch_size` is that
    of all ranks together, each of which makes its share: the samples do not depend on their number.
    """

    def __init__(
        self,
        source: str | Path | RunConfig,
        overrides: Sequence[str] = (),
        *,
        steps_per_epoch: int | None = None,
    ) -> None:
        """source: a data set (folder, dataset.json, list, URL), a run's YAML, or a RunConfig. overrides: settings as
        "section.field=value". Of a run's settings those of data, prepare, cache, sample and augment count, train.seed,
        and network.strides for the patch. steps_per_epoch: batches of an epoch; None for as many as see each case once.

        Raises ValueError for mistakes in the settings, and those that Lightning decides.
        """
        super().__init__()
        config = _config(source, overrides)
        mistakes = _mistakes(config)
        if mistakes:
            raise ValueError("\n".join(mistakes))
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ValueError(f"HastenDataModule: steps_per_epoch={steps_per_epoch}; at least 1 is needed")
        self._config, self._steps_per_epoch = config, steps_per_epoch
        self._run_plan: RunPlan | None = None
        self._arena: Arena | None = None
        self._loader: StepLoader | None = None
        self._restored: int | None = None

    # Properties that a LightningModule may need before a Trainer exists

    @property
    def planned(self) -> RunPlan:
        """The run's settings and cases with the plan for them."""
        return self._run_plan or self._planned_on(None)

    @property
    def num_channels(self) -> int:
        """Channels of an image."""
        return len(self.planned.case_set.channels)

    @property
    def num_classes(self) -> int:
        """Classes with the background, as the label holds them; with data.ignore it holds 255, too."""
        return len(self.planned.case_set.labels)

    # Lightning's hooks

    def prepare_data(self) -> None:
        """Read, check and prepare all cases into the cache; Lightning calls it in one process of a host."""
        planned = self._planned_on(self._device())
        arena_of(replace(planned, config=replace(planned.config, cache=replace(planned.config.cache, home="file"))))

    def setup(self, stage: str | None = None) -> None:
        """Open the prepared cases on the Trainer's device; in every process."""
        device, before = self._device(), self._run_plan
        planned = self._planned_on(device)
        if self._arena is None or planned is not before:
            self._arena = arena_of(planned)

    def train_dataloader(self) -> StepLoader:
        """Loader of this rank's share of every batch, starting where a checkpoint left off."""
        planned, arena = self._opened()
        trainer = self.trainer
        steps = _planned_steps(trainer, self._steps_per_epoch)
        program, _ = choose_program(with_train(planned, steps=steps) if steps else planned, arena, self._share())
        position = self._restored
        if position is None:
            progress = _batch_progress(trainer)
            position = progress.total.processed if progress is not None else 0
        self._restored = None
        self._loader = StepLoader(
            program,
            self._steps_per_epoch or math.ceil(len(planned.train) / planned.config.sample.batch_size),
            position=position,
            is_fixed=trainer is not None and trainer.overfit_batches > 0,
        )
        return self._loader

    def val_dataloader(self) -> CaseLoader | list[Any]:
        """Whole prepared cases of this rank."""
        planned, arena = self._opened()
        ids = tuple(case.id for case in planned.validation)
        cases, flat = arena.index(ids), planned.case_set.spatial_dims == 2

        def case(number: int) -> dict[str, Any]:
            image = arena.image(cases[number])[None].to(planned.device, torch.float32)
            label = arena.label(cases[number])[None, None].to(planned.device)
            image, label = (image[:, :, 0], label[:, :, 0]) if flat else (image, label)
            return {"image": image, "label": label, "id": [ids[number]]}

        # As many for each rank, as ranks must make the same number of steps: some occur twice.
        share = self._share()
        data: Any = cases  # the sampler asks for their number alone
        return CaseLoader(case, list(DistributedSampler(data, share.size, share.rank, shuffle=False))) or []

    def teardown(self, stage: str | None = None) -> None:
        """Release the cases."""
        self._arena = None

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream of batches, and the settings that the stream depends on."""
        position = self._loader.position if self._loader is not None else self._restored or 0
        progress = _batch_progress(self.trainer)
        if progress is not None and self._loader is not None:
            # A batch whose step failed was not trained on.
            position -= progress.current.ready - progress.current.processed
        return {"position": position, "settings": _stream_settings(self.planned)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume at that position. Raises ValueError naming a setting that differs from the checkpoint's."""
        settings = _stream_settings(self.planned)
        for name, saved in state_dict["settings"].items():
            if settings.get(name) != saved:
                difference = f": {saved} there, {settings.get(name)} here" if isinstance(saved, int) else ""
                raise ValueError(
                    f"HastenDataModule: {name} is not that of the checkpoint{difference}; its batches would differ. "
                    "Resume with the same settings and cases, or start a new training from the checkpoint's "
                    "weights"
                )
        self._restored = int(state_dict["position"])
        if self._loader is not None:
            self._loader.position = self._restored

    # Device and rank of the Trainer

    def _planned_on(self, device: torch.device | None) -> RunPlan:
        """The plan for the Trainer's device; None takes train.device."""
        if self._run_plan is None or (device is not None and self._run_plan.device != device):
            name = self._config.train.device if device is None else str(device)
            self._run_plan = plan_run(replace(self._config, train=replace(self._config.train, device=name)))
        return self._run_plan

    def _opened(self) -> tuple[RunPlan, Arena]:
        self.setup()
        assert self._arena is not None
        return self.planned, self._arena

    def _device(self) -> torch.device:
        if self.trainer is None:
            return pick_device(self._config.train.device)
        device: torch.device = self.trainer.strategy.root_device
        return pick_device(str(device))

    def _share(self) -> Share:
        """This rank's; Lightning accumulates over batches and not over pieces of one."""
        trainer = self.trainer
        if trainer is None:
            return Share()
        # Ranks of one model-parallel group need the same batch, which the strategy handles.
        ranks = trainer.distributed_sampler_kwargs or {"rank": trainer.global_rank, "num_replicas": trainer.world_size}
        return Share(ranks["rank"], ranks["num_replicas"])


def _stream_settings(planned: RunPlan) -> dict[str, Any]:
    """Settings that determine the batches, whatever the number of ranks: a resumed run must have the same."""
    sample = planned.config.sample
    return {
        "train.seed": planned.config.train.seed,
        "sample.batch_size": sample.batch_size,
        "sample": digest(asdict(sample)),
        "training cases": digest([case.id for case in planned.train]),
    }


def _config(source: str | Path | RunConfig, overrides: Sequence[str]) -> RunConfig:
    if isinstance(source, RunConfig):
        if overrides:
            raise ValueError("HastenDataModule: a RunConfig is given whole; put the overrides into it")
        return source
    name = str(source)
    if name.lower().endswith((".yaml", ".yml")):
        return load_run(name, overrides)
    return load_source(name, [overrides] if isinstance(overrides, str) else overrides)


def _mistakes(config: RunConfig) -> list[str]:
    """Mistakes: settings that the Trainer decides, or that need the length of the whole run."""
    given, defaults = flat(config), flat(RunConfig())
    mistakes = [
        f"{name}: {remedy}" for name, remedy in _OF_LIGHTNING.items() if given[name] not in (defaults[name], ())
    ]
    if not config.data.source:
        mistakes.append("data.source: name a data set (a folder, a dataset.json, a JSON or CSV list, or a URL of one)")
    return mistakes


def _planned_steps(trainer: Any, per_epoch: int | None) -> int:
    """Batches of the whole training, from the Trainer's arguments; 0 if these do not limit it."""
    if trainer is None:
        return 0
    if trainer.max_steps and trainer.max_steps > 0:
        return int(trainer.max_steps * trainer.accumulate_grad_batches)
    epochs = trainer.max_epochs or 0
    return epochs * per_epoch if epochs > 0 and per_epoch else 0


def _batch_progress(trainer: Any) -> Any:
    return None if trainer is None else trainer.fit_loop.epoch_loop.batch_progress


class StepLoader:
    """An epoch is the next `length` batches of a stream that any step of can be the first one.

    `position` is the number of batches that were given out: the step that comes next. What is left of an epoch that
    the Trainer ends early is the beginning of the next one. is_fixed: every epoch has the batches of the first.
    """

    def __init__(self, program: Program, length: int, *, position: int = 0, is_fixed: bool = False) -> None:
        self._program, self._length = program, length
        self._fixed = position if is_fixed else None
        self.position = position

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Generator[dict[str, Tensor], None, None]:
        # A generator reads the position when its first batch is requested: iterators are created earlier than that.
        first = self.position = self.position if self._fixed is None else self._fixed
        for batch in Feed(self._program, first=first, last=first + self._length):
            self.position += 1
            yield dict(batch)

    def state_dict(self) -> dict[str, Any]:
        """Lightning treats a loader that has this as resumable; the data module stores more."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: the data module has restored the position already."""


class CaseLoader:
    """Whole cases one by one, as batches of one: tensors by key, and the case's name as `id`, a list of one."""

    def __init__(self, case: Callable[[int], dict[str, Any]], indices: Sequence[int]) -> None:
        """case: the batch of a case, by its index. indices: those of this process."""
        self._case, self._indices = case, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._case, self._indices)
