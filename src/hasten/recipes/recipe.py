"""The Recipe dataclass: a published task with its data, settings and target metric, and its phantoms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from hasten.config.schema import Count, Counts, Natural, Positive, Triple

Target = Annotated[float, Interval(gt=0, le=1)]
Maker = Literal["ct", "tumours", "hippocampi", "cells", "spheres", "slides"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerSettings:
    """What MONAI and other libraries train with beside Hasten (`benchmarks/ladder` in the repository).

    The defaults are those of MONAI's fast training tutorial.
    """

    patch: Triple | None = None
    """Crop (D, H, W) in voxels; None takes the patch that Hasten trains with."""
    roi: Triple | None = None
    """Window (D, H, W) of the validation; None takes the crop."""
    overlap: float = 0.25
    """Share of a window that overlaps its neighbour."""
    cases: int = 2
    """Cases in a batch."""
    crops: int = 4
    """Crops of each case in a batch."""
    validate_every: int = 1
    """Epochs between validations."""
    regular_lr: float = 2e-4
    """Learning rate of Adam, with which the lower rungs train."""
    loss: Literal["dice_ce", "dice_focal"] = "dice_ce"
    """Loss of the rung of algorithms, instead of plain Dice."""
    optimizer: Literal["sgd", "novograd"] = "sgd"
    """Optimizer of the rung of algorithms, instead of Adam."""
    lr: float = 0.2
    weight_decay: float = 4e-5
    nnunet_features: tuple[int, ...] | None = None
    """Features of each stage of nnU-Net's network, finest first, in the place of those that it plans."""
    nnunet_batch_size: int | None = None
    """Likewise its batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TwinSettings:
    """Phantoms that stand in for the data, and what training on them changes."""

    make: Maker = "ct"
    """Kind of phantom: `ct` abdomens with a spleen, `tumours` in brain MR of 4 channels, `hippocampi`, 2-D pictures of
    `cells`, `spheres` as in MONAI's tests, whole `slides`.
    """
    cases: Count = 16
    shape: Counts | None = None
    """(D, H, W) in voxels, and for pictures (1, H, W)."""
    spacing: tuple[Positive, Positive, Positive] = (1.0, 1.0, 1.0)
    """(D, H, W) in mm."""
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """What only these phantoms have."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings as in a run's YAML that differ from the recipe's."""
    validation_last: Natural | None = None
    """None is the recipe's."""
    target: Target | None = None
    """None is the recipe's."""
    peer: PeerSettings | None = None
    """None is the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A task. Space is (D, H, W) everywhere."""

    __pydantic_config__: ClassVar[dict[str, bool]] = {"allow_inf_nan": False}
    name: str = ""
    title: str = ""
    kind: Literal["segmentation", "detection"] = "segmentation"
    data: str = ""
    """Name of the public data set (`hasten.cases.public`); empty where there is none."""
    labels: dict[int, str] = field(default_factory=dict)
    """Label value to class name; the data may hold no other values."""
    validation_last: Natural = 0
    """The validation cases are this many of the last ones, by sorted ids; 0 leaves it to run.data.split."""
    metric: str = "dice"
    target: Target | None = None
    """The metric's value that a run stops at."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings as in a run's YAML; of a detection recipe those of `hasten.pathology`."""
    peer: PeerSettings | None = None
    """None where MONAI has no arms for it."""
    twin: TwinSettings | None = None
    """Phantoms of the data's own size."""
    reduced: TwinSettings | None = None
    """Phantoms so small that two cores can be trained on them."""
    fine_tuning: tuple[str, ...] = ()
    """Commands, one after another, that train this task from the weights of another run."""
    sources: dict[str, str] = field(default_factory=dict)
    """Source of each number: a name of the number, or of several, to where it was published or measured."""

    def twin_of(self, *, reduced: bool) -> TwinSettings | None:
        return self.reduced if reduced else self.twin

    def last_of(self, twin: TwinSettings | None) -> int:
        """How many of the last cases validate, of the data or of phantoms."""
        return self.validation_last if twin is None or twin.validation_last is None else twin.validation_last
