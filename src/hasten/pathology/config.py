"""The validated settings of a detection run: loaded from a recipe or YAML with overrides, and dumped to YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from hasten.config.load import checked_as, gather, refuse
from hasten.config.places import Key
from hasten.config.resume import RUN_RULES, Rule, Rules
from hasten.config.schema import OptimizerName, Range
from hasten.config.size import parse_size
from hasten.config.yaml_text import load_yaml
from hasten.engine.measure import Precision
from hasten.engine.metrics.froc import RATES

KIND = "detection"
"""What the top level of a detection run's YAML says under `kind`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlidesConfig:
    """Where the slides come from."""

    source: str = ""
    """A folder with slides/ and masks/, or a CSV or JSON list of slide, mask and split."""
    fraction: float = 0.25
    """Share of the slides that is validated on, where the list has no split."""
    backend: Literal["auto", "cucim", "tifffile", "openslide"] = "auto"
    """What reads slides; `auto` takes the fastest that is installed and can read the file."""
    mpp: float | None = None
    """Micrometres that a pixel of level 0 is long, for slides that do not say so themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TilesConfig:
    """How slides are cut. Sizes are pixels of the level that is read."""

    level: int | None = None
    """The level that tiles are read from; None takes `mpp`, or level 0."""
    mpp: float | None = None
    """Micrometres per pixel of that level, instead of its number."""
    size: int = 224
    """Sides of a tile."""
    stride: int | None = None
    """Pixels between training tiles; None takes `size`."""
    tissue_downsample: float = 32.0
    """Tissue is looked for on the coarsest level that is no coarser than this."""
    min_tissue_pixels: int = 16
    """Specks of tissue of fewer pixels of that level are left out."""
    min_tissue: float = 0.1
    """Share of a cell that must be tissue."""
    lesion_share: float = 0.1
    """A tile is positive if a lesion covers this share of its middle (half as long as it); negative if it has none."""
    per_slide: int = 2000
    """Tiles of each class that are taken from a slide at most, drawn by the seed."""
    home: Literal["auto", "ram", "file"] = "auto"
    """Where training tiles lie; `auto` takes memory up to `ram`, else a file in the cache folder."""
    ram: str = "auto"
    """Memory for tiles, such as 64GiB; `auto` takes half of what is free."""
    num_threads: int | None = None
    """Threads that read slides; None takes the number of usable cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColourConfig:
    """Augmentation, one batched program; numbers as torchvision's ColorJitter and MONAI's tutorial have them."""

    brightness: float = 64.0 / 255.0
    contrast: float = 0.75
    saturation: float = 0.25
    hue: float = 0.04
    flip_prob: float = 0.5
    """Along each axis."""
    rotate90_prob: float = 0.75
    zoom_prob: float = 0.5
    zoom_range: Range = (0.9, 1.1)
    compile: bool = False
    """Compile it: on a GPU the whole, on a CPU its costly steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierConfig:
    """A ResNet-18."""

    width: int = 64
    """Feature channels of the first of its four stages; each further one has twice as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitConfig:
    """The training. None is decided from the data or measured on this machine."""

    seed: int = 0
    device: str = "auto"
    epochs: float = 10.0
    """Passes over the tiles, the rarer class repeated until both are as many."""
    steps: int | None = None
    """Optimizer steps, instead of `epochs`."""
    batch_size: int = 64
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_fraction: float = 0.1
    clip_norm: float = 12.0
    ema: float = 0.99
    """Longest memory of the weights' moving average, which is validated and predicts; 0 is off."""
    precision: Precision | None = None
    channels_last: bool | None = None
    validate_every: int | None = None
    """Steps between validations on tiles; None takes an epoch."""
    target: float | None = None
    """Stop when the area under the ROC curve of validation tiles reaches this."""
    max_seconds: float | None = None
    """Seconds that the whole run may take, heat maps included; the schedule ends in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectConfig:
    """From heat maps to detections, and what counts as a lesion."""

    stride: int | None = None
    """Pixels between values of a heat map, on the level of the tiles; None takes half a tile."""
    batch_size: int = 256
    threshold: float = 0.5
    """Detections are above this."""
    box: int = 48
    """Side, in values of the heat map, of the square around a detection in which there is no other."""
    mask_downsample: float = 32.0
    """Lesions are compared on the coarsest level that is no coarser than this."""
    grow_um: float = 75.0
    """Lesions closer to each other than this are one (Camelyon: 75 um)."""
    itc_um: float = 200.0
    """Lesions shorter than this are isolated tumour cells, which do not count (Camelyon: 200 um)."""
    rates: tuple[float, ...] = RATES
    """False positives per slide at which the sensitivity is taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionConfig:
    data: SlidesConfig = field(default_factory=SlidesConfig)
    tiles: TilesConfig = field(default_factory=TilesConfig)
    augment: ColourConfig = field(default_factory=ColourConfig)
    network: ClassifierConfig = field(default_factory=ClassifierConfig)
    train: FitConfig = field(default_factory=FitConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)


DETECTION_RULES: Rules = {
    "data.*": Rule("fixed"),
    "tiles.home": Rule("machine"),
    "tiles.ram": Rule("machine"),
    "tiles.num_threads": Rule("machine"),
    "tiles.*": Rule("fixed"),
    "augment.*": Rule("training"),
    "network.*": Rule("fixed"),
    "train.seed": Rule("fixed"),
    "train.optimizer": Rule("fixed"),
    "train.weight_decay": RUN_RULES["train.weight_decay"],
    "train.device": RUN_RULES["train.device"],
    "train.channels_last": Rule("machine"),
    "train.max_seconds": RUN_RULES["train.max_seconds"],
    "train.epochs": Rule("training", "the schedule is stretched or shortened to that many epochs"),
    "train.steps": RUN_RULES["train.steps"],
    "train.learning_rate": RUN_RULES["train.learning_rate"],
    "train.batch_size": Rule("training", "an epoch has another number of steps"),
    "train.*": Rule("training"),
    "detect.*": Rule("machine", "heat maps and detections are made with it at the end"),
}
"""What may change when a run on slides is resumed; `machine` includes what is done after the training."""


def load(settings: Mapping[str, Any] | str | Path | None = None, overrides: Sequence[str] = ()) -> DetectionConfig:
    """The run that settings (of a recipe, or of a YAML file) describe, with `section.field=value` over them.

    A relative `data.source` is taken from the current folder, in a file from the file's. Raises ValueError: every
    mistake at once, each with its dotted path, its line or override, and a remedy.
    """
    path = Path(settings) if isinstance(settings, (str, Path)) else None
    gathered = gather(DetectionConfig, path, overrides, None if isinstance(settings, (str, Path)) else settings)
    if gathered.tree.pop("kind", KIND) != KIND:
        gathered.mistakes.append(f"{path or 'settings'}: kind must be {KIND}; runs of another kind have other settings")
    config, mistakes = checked_as(DetectionConfig, gathered.tree)
    invalid = {at[:2] for at, _ in mistakes}
    mistakes += [(at, message) for at, message in _ranges(config) if at not in invalid]
    refuse(gathered.mistakes, mistakes, gathered.origins, path)
    source = config.data.source
    if source:
        folder = path.parent if path is not None and ("data", "source") not in gathered.overridden else Path()
        source = str(Path.cwd() / folder / Path(source).expanduser())
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))


def dump(config: DetectionConfig) -> str:
    """YAML text that `load` reads back as an equal config; every field is written."""
    tree = {"kind": KIND, **dataclasses.asdict(config)}
    tree["augment"]["zoom_range"] = list(config.augment.zoom_range)
    tree["detect"]["rates"] = list(config.detect.rates)
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))


def is_detection_run(run: str | Path) -> bool:
    """Whether a run directory is one of slides."""
    path = Path(run) / "run.yaml"
    try:
        tree = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    return isinstance(tree, dict) and tree.get("kind") == KIND


def _ranges(config: DetectionConfig) -> Iterator[tuple[Key, str]]:
    """Range errors that types cannot express."""
    data, tiles, augment, train, detect = config.data, config.tiles, config.augment, config.train, config.detect
    shares: dict[Key, float] = {("data", "fraction"): data.fraction, ("tiles", "min_tissue"): tiles.min_tissue}
    shares |= {("tiles", "lesion_share"): tiles.lesion_share, ("detect", "threshold"): detect.threshold}
    shares |= {("augment", name): getattr(augment, name) for name in ("flip_prob", "rotate90_prob", "zoom_prob")}
    for at, value in shares.items():
        if not 0 <= value <= 1 or (at == ("data", "fraction") and not 0 < value <= 0.5):
            yield at, _wrong(at, "a share from 0 to 1" if at != ("data", "fraction") else "above 0, up to 0.5", value)
    positive: dict[Key, float | None] = {("data", "mpp"): data.mpp, ("train", "learning_rate"): train.learning_rate}
    positive[("network", "width")] = config.network.width
    positive |= {("tiles", name): getattr(tiles, name) for name in ("mpp", "size", "stride", "tissue_downsample")}
    positive |= {("tiles", name): getattr(tiles, name) for name in ("per_slide", "num_threads")}
    positive |= {("train", name): getattr(train, name) for name in ("epochs", "steps", "batch_size", "validate_every")}
    positive |= {("detect", name): getattr(detect, name) for name in ("stride", "batch_size", "box", "mask_downsample")}
    for at, number in positive.items():
        if number is not None and not number > 0:
            yield at, _wrong(at, "above 0", number)
    if tiles.level is not None and tiles.mpp is not None:
        yield ("tiles", "mpp"), "tiles.mpp: give a level or its micrometres per pixel, not both; leave one out"
    if tiles.ram != "auto":
        try:
            parse_size(tiles.ram)
        except ValueError:
            yield ("tiles", "ram"), _wrong(("tiles", "ram"), "a size such as 8GiB, or auto", tiles.ram)
    if not detect.rates or min(detect.rates) < 0:
        yield ("detect", "rates"), _wrong(("detect", "rates"), "numbers of 0 or more", list(detect.rates))
    if not 0 <= train.ema < 1:
        yield ("train", "ema"), _wrong(("train", "ema"), "at least 0 and below 1", train.ema)


def _wrong(at: Key, rule: str, value: object) -> str:
    return f"{'.'.join(map(str, at))}: must be {rule} (given {value})"
