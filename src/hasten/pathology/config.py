"""The settings of a run on slides: their sections, their ranges, and what may change on resuming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from annotated_types import Gt, Interval

from hasten.config.check import rule_mistakes
from hasten.config.load import load_as
from hasten.config.resume_rules import RUN_RULES, Rule, Rules
from hasten.config.schema import (
    Count,
    Natural,
    NonNegative,
    ObserveConfig,
    OptimizerName,
    Part,
    Positive,
    Range,
    Share,
)
from hasten.config.size import Seconds
from hasten.config.yaml_file import load_yaml
from hasten.devices import Precision
from hasten.observe.rundir import RUN_YAML


@dataclass(frozen=True, kw_only=True, slots=True)
class SlidesConfig:
    """Where the slides come from."""

    source: str = ""
    """A folder with slides/ and masks/, or a CSV or JSON list of slide, mask and split."""
    fraction: Annotated[float, Interval(gt=0, le=0.5)] = 0.25
    """Share of the slides that is validated on, where the list has no split."""
    backend: Literal["auto", "cucim", "tifffile", "openslide"] = "auto"
    """What reads slides; `auto` takes the fastest that is installed and can read the file."""
    mpp: Positive | None = None
    """Micrometres that a pixel of level 0 is long, for slides that do not say so themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TilesConfig:
    """How slides are cut. Sizes are pixels of the level that is read."""

    level: int | None = None
    """The level that tiles are read from; None takes `mpp`, or level 0."""
    mpp: Positive | None = None
    """Micrometres per pixel of that level, instead of its number."""
    size: Count = 224
    """Sides of a tile."""
    stride: Count | None = None
    """Pixels between training tiles; None takes `size`."""
    tissue_downsample: Positive = 32.0
    """Tissue is looked for on the coarsest level that is no coarser than this."""
    min_tissue_pixels: int = 16
    """Specks of tissue of fewer pixels of that level are left out."""
    min_tissue: Share = 0.1
    """Share of a cell that must be tissue."""
    lesion_share: Share = 0.1
    """A tile is positive if a lesion covers this share of its middle (half as long as it); negative if it has none."""
    per_slide: Count = 2000
    """Tiles of each class that are taken from a slide at most, drawn by the seed."""
    num_threads: Count | None = None
    """Threads that read slides; None takes the number of usable cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColourConfig:
    """Augmentation, one batched program; numbers as torchvision's ColorJitter and MONAI's tutorial have them."""

    brightness: float = 64.0 / 255.0
    contrast: float = 0.75
    saturation: float = 0.25
    hue: float = 0.04
    flip_prob: Share = 0.5
    """Probability of a flip along each axis."""
    rotate90_prob: Share = 0.75
    zoom_prob: Share = 0.5
    zoom_range: Range = (0.9, 1.1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierConfig:
    """A ResNet-18."""

    width: Count = 64
    """Feature channels of the first of its four stages; each further one has twice as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitConfig:
    """The training. None is decided from the data or measured on this machine."""

    seed: Natural = 0
    device: str = "auto"
    epochs: Positive = 10.0
    """Passes over the tiles, the rarer class repeated until both are as many."""
    steps: Annotated[int, Interval(ge=1, le=10**9)] | None = None
    """Optimizer steps, instead of `epochs`."""
    batch_size: Count = 64
    optimizer: OptimizerName = "adamw"
    learning_rate: Positive = 1e-3
    weight_decay: NonNegative = 0.01
    warmup_fraction: Part = 0.1
    clip_norm: NonNegative = 12.0
    ema: Part = 0.99
    """Largest decay of the moving average of the weights, which validation and prediction use; 0 turns it off."""
    precision: Precision | None = None
    channels_last: bool | None = None
    validate_every: Count | None = None
    """Steps between validations on tiles; None takes an epoch."""
    target: Annotated[float, Interval(gt=0, le=1)] | None = None
    """Stop when the area under the ROC curve of validation tiles reaches this."""
    budget: Annotated[Seconds, Gt(0)] | None = None
    """Seconds that the whole run may take, heat maps included; the schedule ends in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectConfig:
    """Detections from heat maps, and what counts as a lesion."""

    stride: Count | None = None
    """Pixels between values of a heat map, on the level of the tiles; None takes half a tile."""
    batch_size: Count = 256
    threshold: Share = 0.5
    """Detections are above this."""
    box: Count = 48
    """Side, in values of the heat map, of the square around a detection in which there is no other."""
    mask_downsample: Positive = 32.0
    """Lesions are compared on the coarsest level that is no coarser than this."""
    grow_um: float = 75.0
    """Lesions closer to each other than this are one (Camelyon: 75 um)."""
    itc_um: float = 200.0
    """Lesions shorter than this are isolated tumour cells, which do not count (Camelyon: 200 um)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionConfig:
    """The settings of a run on slides."""

    __pydantic_config__: ClassVar[dict[str, bool]] = {"allow_inf_nan": False}
    kind: Literal["detection"] = "detection"
    data: SlidesConfig = field(default_factory=SlidesConfig)
    tiles: TilesConfig = field(default_factory=TilesConfig)
    augment: ColourConfig = field(default_factory=ColourConfig)
    network: ClassifierConfig = field(default_factory=ClassifierConfig)
    train: FitConfig = field(default_factory=FitConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)


DETECTION_RULES: Rules = {
    "kind": Rule("fixed"),
    "data.*": Rule("fixed"),
    "tiles.num_threads": Rule("machine"),
    "tiles.*": Rule("fixed"),
    "augment.*": Rule("training"),
    "network.*": Rule("fixed"),
    "train.seed": Rule("fixed"),
    "train.optimizer": Rule("fixed"),
    "train.weight_decay": RUN_RULES["train.weight_decay"],
    "train.device": RUN_RULES["train.device"],
    "train.channels_last": Rule("machine"),
    "train.budget": RUN_RULES["train.budget"],
    "train.epochs": Rule("training", "the schedule is stretched or shortened to that many epochs"),
    "train.steps": RUN_RULES["train.steps"],
    "train.learning_rate": RUN_RULES["train.learning_rate"],
    "train.batch_size": Rule("training", "an epoch has another number of steps"),
    "train.*": Rule("training"),
    "detect.*": Rule("machine", "heat maps and detections are made with it at the end"),
    "observe.*": RUN_RULES["observe.*"],
}
"""What may change when a run on slides is resumed; `machine` includes what is done after the training."""


def load(settings: Mapping[str, Any] | str | Path | None = None, overrides: Sequence[str] = ()) -> DetectionConfig:
    """The run that settings (of a recipe, or of a YAML file) describe, with `section.field=value` over them.

    As `hasten.config.load.load_run`, and raises the same errors.
    """
    path = Path(settings) if isinstance(settings, (str, Path)) else None
    tree = None if isinstance(settings, (str, Path)) else settings
    return load_as(DetectionConfig, lambda config: list(_mistakes(config)), path, overrides, tree=tree)


def is_detection_run(run: str | Path) -> bool:
    """Whether a run directory is one of slides."""
    path = Path(run) / RUN_YAML
    try:
        tree = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    return isinstance(tree, dict) and tree.get("kind") == "detection"


def _mistakes(config: DetectionConfig) -> Iterator[str]:
    """Every mistake as "dotted.path: what is wrong (given ...)"."""
    tiles = config.tiles
    if tiles.level is not None and tiles.mpp is not None:
        yield "tiles.mpp: give a level or its micrometres per pixel, not both; leave one out"
    yield from rule_mistakes(config)
