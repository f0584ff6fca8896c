"""The tile classifier, its training on slides by the engine's loop, and its heat maps of new slides."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hasten.cache.key import cache_dir
from hasten.checkpoint.file import read_checkpoint
from hasten.config.decision import GIVEN, Accelerator, Accelerators
from hasten.config.load import dump_run, to_dict
from hasten.config.schema import CacheConfig, DistributeConfig, TrainConfig
from hasten.config.settled import PlannedTrain, fields_of
from hasten.devices import free_bytes, holds_cases
from hasten.distribute.strategy import alone
from hasten.nets.surgery.fallback import keep_fp32, tiny_layers
from hasten.observe.rundir import BEST_PT, CHECKPOINTS
from hasten.optim.average import average_of
from hasten.optim.build import paced_schedule
from hasten.pathology.config import ClassifierConfig, DetectionConfig, is_detection_run, load
from hasten.pathology.evaluate import (
    DETECTIONS_CSV,
    HEAT_MAP_ENDINGS,
    Detection,
    Scorer,
    TileResult,
    evaluate_tiles,
    heat_map_grid,
    scan,
    write_detections,
)
from hasten.pathology.tiles import TileSet, balanced, make_batches, num_threads, open_case
from hasten.runtime.device import current_device, pick_device
from hasten.runtime.measure import MEASURE_S, Probe, fastest_variant
from hasten.runtime.precision import memory_format, to_memory_format
from hasten.runtime.variant import Variant, candidates, explain, fitted_to_device
from hasten.training.choose.experiments import SHARE
from hasten.training.components import LoopComponents
from hasten.training.compose import make_step


def build_classifier(config: ClassifierConfig) -> nn.Module:
    """(B, 3, H, W) to (B, 1) logits: torchvision's ResNet-18, as in MONAI's pathology tutorial, untrained."""
    from monai.networks.nets import ResNet

    tiles = {"spatial_dims": 2, "n_input_channels": 3, "num_classes": 1}
    torchvision = {"conv1_t_stride": 2, "shortcut_type": "B", "bias_downsample": False}
    return ResNet("basic", [2] * 4, [config.width * by for by in (1, 2, 4, 8)], **tiles, **torchvision)


def tile_loss(output: Tensor, label: Tensor) -> Tensor:
    """() binary cross-entropy. output: (B, 1) logits; label: (B, ...), of which the first value is the tile's."""
    target = label.reshape(len(label), -1)[:, :1].to(torch.float32)
    return nn.functional.binary_cross_entropy_with_logits(output.float(), target)


def choose_variant(
    network: nn.Module, config: DetectionConfig, device: torch.device, seconds: float = math.inf
) -> tuple[Variant, Accelerators]:
    """Precision and memory format, as set or the fastest measured. Sets layers that bf16 breaks to fp32, in place.

    seconds: the time that measuring may take.
    """
    train, size = config.train, config.tiles.size
    note = ""
    if device.type == "cpu" and train.precision in (None, "bf16"):
        tiny = tiny_layers(network, torch.zeros(2, 3, size, size))
        if tiny:
            keep_fp32(network, tiny)
            note = f"; {len(tiny)} convolutions of the smallest features stay in float32"
    # Hasten's kernels are not for a ResNet.
    given = TrainConfig(precision=train.precision, channels_last=train.channels_last, fused_kernels=False)
    allowed = candidates(device, fitted_to_device(given, device))
    variant, why = allowed[0], GIVEN
    if len(allowed) > 1:
        shape = (min(train.batch_size, 8), 3, 1, size, size)
        probe = Probe(loss=tile_loss, shape=shape, num_classes=2, spatial_dims=2, device=device)
        memory = cache_dir(CacheConfig()) / "measured"
        measured = fastest_variant(network, probe, allowed, memory, seconds=min(MEASURE_S, seconds))
        variant, why = measured.variant, explain(measured)
    accelerators = {
        "precision": Accelerator(
            variant.precision != "fp32",
            "measured" if train.precision is None else "user",
            f"{variant.precision}: {why}{note}",
        ),
        "channels-last": Accelerator(variant.channels_last, "measured" if train.channels_last is None else "user", why),
    }
    return variant, accelerators


_READING = 2.0
"""Approximate time to read and score a tile of a slide, relative to scoring one in memory."""


def compose_slides(config: DetectionConfig, tiles: TileSet, seconds: float = math.inf) -> LoopComponents:
    """Network, step and batches; precision and memory format are measured where they are not set.

    seconds: the time that is left for the run; measuring takes a tenth of it at most.
    """
    device = pick_device(config.train.device)
    torch.manual_seed(config.train.seed)
    network = build_classifier(config.network).to(device)
    variant, accelerators = choose_variant(network, config, device, SHARE * seconds)
    to_memory_format(network, 2, variant.channels_last)
    on_gpu = holds_cases(device) and tiles.image.numel() <= free_bytes(device) // 2
    size, seed = config.train.batch_size, config.train.seed
    batches = make_batches(tiles, config.augment, batch_size=size, seed=seed, device=device, resident=on_gpu)
    where = "GPU memory" if on_gpu else "host memory"
    accelerators["tiles cached"] = Accelerator(True, "default", f"{tiles}, read once; batches are made from {where}")
    accelerators["batched augmentation"] = Accelerator(True, "default", "one program for a batch")
    fit, per_epoch = config.train, -(-len(balanced(tiles.label)) // size)
    every, steps = fit.validate_every or per_epoch, fit.steps or max(1, round(fit.epochs * per_epoch))
    decided = {**asdict(variant), "steps": steps, "validate_every": every, "checkpoint_every": every}
    shared = {name: value for name, value in fields_of(fit).items() if name not in ("epochs", "batch_size")}
    train = PlannedTrain(**{**shared, **decided})
    paced = paced_schedule(train, size)
    average = average_of(network) if train.ema > 0 else None
    return LoopComponents(
        settings=to_dict(config),
        train=train,
        observe=config.observe,
        timeout_s=DistributeConfig().timeout_s,
        step=make_step(train, network, tile_loss, paced, average, alone(), 2, device),
        program=batches,
        accelerators=accelerators,
        paced=paced,
    )


def scorer_of(network: nn.Module, config: DetectionConfig, variant: Variant, device: torch.device) -> Scorer:
    """network: in evaluation mode, and moved to the device already."""
    size, threads = config.detect.batch_size, num_threads(config.tiles)
    return Scorer(network=network, variant=variant, device=device, batch_size=size, threads=threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class TileEvaluator:
    """The `Evaluator` of a run on slides: AUC, accuracy and loss on the tiles of the held-out slides."""

    config: DetectionConfig
    variant: Variant
    device: torch.device
    tiles: TileSet
    cells: int = 0
    """Number of tiles that are scored for the heat maps after the training."""
    metric: str = "auc"
    accelerators: Accelerators = field(default_factory=dict)
    covers: None = None
    """All tiles, always."""

    @property
    def repeated(self) -> float:
        """Time of those heat maps, in validations."""
        return _READING * self.cells / len(self.tiles.label)

    def __call__(self, network: nn.Module, *, room: Callable[[], float] = lambda: math.inf) -> TileResult:
        """`room` is not asked: all tiles are scored in one go."""
        training = network.training
        result = evaluate_tiles(scorer_of(network.eval(), self.config, self.variant, self.device), self.tiles)
        network.train(training)
        return result

    def fit(self, network: nn.Module, seconds: float) -> float:
        """Estimated duration of a validation, from the time of some of its tiles; it is not shortened."""
        training = network.training
        scorer, image = scorer_of(network.eval(), self.config, self.variant, self.device), self.tiles.image
        some = image[: scorer.batch_size]
        for _ in range(2):  # the first pass selects kernels
            begin = time.perf_counter()
            scorer(some)
            elapsed = time.perf_counter() - begin
        network.train(training)
        return elapsed * len(image) / len(some)

    def content(self, network: nn.Module, score: TileResult, step: int) -> dict[str, Any]:
        """What best.pt holds."""
        described = {"config": dump_run(self.config), "variant": asdict(self.variant)}
        return {"weights": network.state_dict(), **described, "step": step, "auc": score.auc}


def predict_slides(
    run: str | Path, slides: Sequence[str | Path], out: str | Path, *, overwrite: bool = False, device: str = "auto"
) -> Path:
    """NAME.npy, NAME.json and NAME.png of each slide in `out`, and detections.csv of all, whose path is returned.

    Raises ValueError for a directory that holds no detection run, two slides of one name, files that exist without
    `overwrite`, and what opening a slide does, before anything is written.
    """
    config, scorer = load_scorer(run, device)
    paths, out = [Path(slide) for slide in slides], Path(out)
    names = [path.stem for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two slides are called {twice}; name one a time")
    targets = [out / DETECTIONS_CSV, *(out / f"{name}{ending}" for name in names for ending in HEAT_MAP_ENDINGS)]
    existing = next((target for target in targets if target.exists()), None)
    if existing is not None and not overwrite:
        raise ValueError(f"{existing}: exists; add --overwrite to replace it, or choose another --out")
    for path in paths:
        with open_case(path, config.data) as slide:
            heat_map_grid(slide, config)  # a slide without the level is refused before anything is written
    rows: list[Detection] = []
    for path, name in zip(paths, names, strict=True):
        with current_device(scorer.device), open_case(path, config.data) as slide:
            rows += scan(slide, name, scorer, config, out).rows(name)
    write_detections(out / DETECTIONS_CSV, rows)
    return out / DETECTIONS_CSV


def load_scorer(run: str | Path, device: str = "auto") -> tuple[DetectionConfig, Scorer]:
    """The settings and the classifier of a run. Raises ValueError for a directory without a detection run."""
    if not is_detection_run(run):
        raise ValueError(f"{run}: holds no run on slides (its run.yaml does not say kind: detection)")
    content = read_checkpoint(Path(run) / CHECKPOINTS / BEST_PT)
    config = load(Path(run) / "run.yaml")
    target = pick_device(device)
    variant = fitted_to_device(Variant(**content["variant"]), target)
    network = build_classifier(config.network)
    network.load_state_dict(content["weights"])
    network = network.to(target, memory_format=memory_format(2, variant.channels_last)).eval()  # type: ignore[call-overload]
    return config, scorer_of(network, config, variant, target)
