"""`HastenDataModule`: Hasten's batches for a Lightning Trainer."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from hasten.config.load import load_run, load_source
from hasten.config.schema import RunConfig
from hasten.lightning.sources import CaseLoader, ChainSource, PlannedSource, RankDevice, Source, StepLoader
from hasten.runtime.device import pick_device
from hasten.training.plan import RunPlan

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Names of the package: the same code, but with classes that don't know each other."""


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
        "section.field=value". Of a run's settings those of data, prepare, cache and sample count, train.seed, and
        network.strides for the patch. steps_per_epoch: batches of an epoch; None for as many as see each case once.

        Raises ValueError for mistakes in the settings, and those that Lightning decides.
        """
        super().__init__()
        config = _config(source, overrides)
        mistakes = _mistakes(config)
        if mistakes:
            raise ValueError("\n".join(mistakes))
        self._begin(PlannedSource(config), steps_per_epoch)

    @classmethod
    def from_monai(
        cls,
        train: Sequence[Mapping[str, Any]] | Any,
        compose: Callable[..., Any],
        validation: Sequence[Mapping[str, Any]] = (),
        validation_compose: Callable[..., Any] | None = None,
        *,
        batch_size: int,
        seed: int = 0,
        compile: bool = False,
        steps_per_epoch: int | None = None,
    ) -> Self:
        """Make a data module from your own files and MONAI transforms: the deterministic part of the chain runs once on
        every
        case, its random part on whole batches (`hasten.compile_transforms`).

        train: rows of files, or one of Hasten's cached data sets made with the same chain. batch_size: samples of all
        ranks together, several of which may come from one case. Batches hold the entries that the chain's random part
        works on. Raises ValueError for a batch size below 1, and validation files without their transforms.
        """
        if batch_size < 1:
            raise ValueError(f"HastenDataModule.from_monai: batch_size={batch_size}; at least 1 is needed")
        if validation and validation_compose is None:
            raise ValueError(
                "HastenDataModule.from_monai: validation has files and validation_compose no transforms; give the "
                "chain's deterministic part"
            )
        module = cls.__new__(cls)
        super(HastenDataModule, module).__init__()
        source = ChainSource(
            train=train,
            compose=compose,
            validation_rows=validation,
            validation_compose=validation_compose if validation else None,
            batch_size=batch_size,
            seed=seed,
            compile=compile,
        )
        module._begin(source, steps_per_epoch)
        return module

    def _begin(self, source: Source, steps_per_epoch: int | None) -> None:
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ValueError(f"HastenDataModule: steps_per_epoch={steps_per_epoch}; at least 1 is needed")
        self._source, self._steps_per_epoch = source, steps_per_epoch
        self._place: RankDevice | None = None
        self._loader: StepLoader | None = None
        self._restored: int | None = None

    # Properties that a LightningModule may need before a Trainer exists

    @property
    def planned(self) -> RunPlan:
        """The run's settings and cases with the plan for them; not for `from_monai`."""
        if not isinstance(self._source, PlannedSource):
            raise ValueError("HastenDataModule.from_monai makes no plan; ask your own transforms")
        return self._source.planned()

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
        self._source.prepare(self._where().device)

    def setup(self, stage: str | None = None) -> None:
        """Open the prepared cases on the Trainer's device; in every process."""
        place = self._where()
        if place != self._place:
            self._source.open(place)
            self._place = place

    def train_dataloader(self) -> StepLoader:
        """Loader of this rank's share of every batch, starting where a checkpoint left off."""
        place = self._opened()
        trainer = self.trainer
        steps_per_epoch = self._steps_per_epoch
        feed, default_steps = self._source.feed(place, _planned_steps(trainer, steps_per_epoch))
        progress = _batch_progress(trainer)
        position = (
            self._restored if self._restored is not None else progress.total.processed if progress is not None else 0
        )
        self._restored = None
        is_fixed = trainer is not None and trainer.overfit_batches > 0
        self._loader = StepLoader(feed, steps_per_epoch or default_steps, position=position, is_fixed=is_fixed)
        return self._loader

    def val_dataloader(self) -> CaseLoader | list[Any]:
        """Whole prepared cases of this rank."""
        return self._source.validation(self._opened()) or []

    def teardown(self, stage: str | None = None) -> None:
        """Release the cases."""
        self._source.close()
        self._place = None

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream of batches, and the settings that the stream depends on."""
        position = self._loader.position if self._loader is not None else self._restored or 0
        progress = _batch_progress(self.trainer)
        if progress is not None and self._loader is not None:
            # A batch whose step failed was not trained on.
            position -= progress.current.ready - progress.current.processed
        return {"position": position, "settings": self._source.settings()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume at that position. Raises ValueError naming a setting that differs from the checkpoint's."""
        settings = self._source.settings()
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

    def _opened(self) -> RankDevice:
        self.setup()
        assert self._place is not None
        return self._place

    def _where(self) -> RankDevice:
        trainer = self.trainer
        if trainer is None:
            device_name = self._source.config.train.device if isinstance(self._source, PlannedSource) else "auto"
            return RankDevice(device=pick_device(device_name))
        device = trainer.strategy.root_device
        if device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"HastenDataModule: batches are made on CPUs and CUDA devices, and the Trainer is on {device}; give it "
                'accelerator="gpu" or accelerator="cpu"'
            )
        # Ranks of one model-parallel group need the same batch, which the strategy handles.
        ranks = trainer.distributed_sampler_kwargs or {"rank": trainer.global_rank, "num_replicas": trainer.world_size}
        return RankDevice(device=device, rank=ranks["rank"], size=ranks["num_replicas"])


def _config(source: str | Path | RunConfig, overrides: Sequence[str]) -> RunConfig:
    if isinstance(overrides, str):
        raise ValueError(f'HastenDataModule: overrides are a list, such as ["{overrides}"]')
    if isinstance(source, RunConfig):
        if overrides:
            raise ValueError("HastenDataModule: a RunConfig is given whole; put the overrides into it")
        return source
    name = str(source)
    if name.lower().endswith((".yaml", ".yml")):
        return load_run(name, overrides)
    return load_source(name, overrides)


def _mistakes(config: RunConfig) -> list[str]:
    """Mistakes: settings that the Trainer decides, or that need the length of the whole run."""
    mistakes = []
    if not config.data.source:
        mistakes.append("data.source: name a data set (a folder, a dataset.json, a JSON or CSV list, or a URL of one)")
    if config.train.accumulate != 1:
        mistakes.append(
            "train.accumulate: Lightning accumulates; set Trainer(accumulate_grad_batches=...) and leave it 1"
        )
    if config.sample.fit_batch:
        mistakes.append(
            "sample.fit_batch: Lightning makes the steps; find the size with its own Tuner.scale_batch_size"
        )
    if config.sample.stages:
        mistakes.append("sample.stages: the stages are shares of a run that Lightning may end anywhere; leave them out")
    if config.distribute.parts:
        mistakes.append("distribute.parts: not under Lightning, whose ranks see all cases; leave it 0")
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
