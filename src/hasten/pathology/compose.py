"""Training on slides by the engine's loop: `compose_slides` makes batches and step, `TileEvaluator` validates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from hasten.config.decision import Accelerator, Accelerators
from hasten.config.load import dump_run, to_dict
from hasten.config.schema import DistributeConfig
from hasten.config.settled import PlannedTrain
from hasten.distribute.strategy import alone
from hasten.optim.average import average_of
from hasten.optim.build import paced_schedule
from hasten.pathology.batches import balanced, make_batches
from hasten.pathology.config import DetectionConfig, FitConfig, shared_settings
from hasten.pathology.evaluate import TileResult, evaluate_tiles
from hasten.pathology.heatmap import Scorer
from hasten.pathology.network import build_classifier, choose_variant, tile_loss
from hasten.pathology.tiles import TileSet, num_threads
from hasten.runtime.device import pick_device
from hasten.runtime.memory_format import to_memory_format
from hasten.runtime.variant import Variant
from hasten.training.choose.experiments import SHARE
from hasten.training.components import LoopComponents
from hasten.training.compose import make_step

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
    resident = device.type == "cpu" or tiles.image.numel() <= torch.cuda.mem_get_info(device)[0] // 2
    batches = make_batches(
        tiles, config.augment, batch_size=config.train.batch_size, seed=config.train.seed, device=device,
        resident=resident,
    )  # fmt: skip
    host = {"ram": "host memory", "file": "a mapped file"}[tiles.home]
    where = "GPU memory" if resident and device.type == "cuda" else host
    accelerators["tiles cached"] = Accelerator(True, "default", f"{tiles}, read once; batches are made from {where}")
    how = batches.why or "not compiled"
    accelerators["batched augmentation"] = Accelerator(True, "default", f"one program for a batch; {how}")
    train = _planned(config.train, -(-len(balanced(tiles.label)) // config.train.batch_size), variant)
    paced = paced_schedule(train, config.train.batch_size)
    average = average_of(network) if train.ema > 0 else None
    step = make_step(train, network, tile_loss, paced, average, alone(), 2, device)
    return LoopComponents(
        settings=to_dict(config), train=train, observe=config.observe, timeout_s=DistributeConfig().timeout_s,
        step=step, program=batches, accelerators=accelerators, paced=paced,
    )  # fmt: skip


def _planned(fit: FitConfig, per_epoch: int, variant: Variant) -> PlannedTrain:
    """The settings with everything open decided. per_epoch: steps of a pass over the tiles."""
    every = fit.validate_every or per_epoch
    decided = {
        "steps": fit.steps or max(1, round(fit.epochs * per_epoch)), "validate_every": every, "checkpoint_every": every,
    }  # fmt: skip
    return PlannedTrain(**{**shared_settings(fit), **asdict(variant), **decided})


def scorer_of(network: nn.Module, config: DetectionConfig, variant: Variant, device: torch.device) -> Scorer:
    """network: in evaluation mode, and moved to the device already."""
    return Scorer(
        network=network, variant=variant, device=device, batch_size=config.detect.batch_size,
        threads=num_threads(config.tiles),
    )  # fmt: skip


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

    @property
    def accelerators(self) -> Accelerators:
        return {}

    @property
    def covers(self) -> None:
        """All tiles, always."""
        return None

    @property
    def repeated(self) -> float:
        """Time of those heat maps, in validations."""
        return _READING * self.cells / len(self.tiles.label)

    def __call__(self, network: nn.Module, *, room: Callable[[], float] = lambda: math.inf) -> TileResult:
        """`room` is not asked: all tiles are scored in one go."""
        training = network.training
        result = evaluate_tiles(self.scorer(network.eval()), self.tiles)
        network.train(training)
        return result

    def scorer(self, network: nn.Module) -> Scorer:
        """network: in evaluation mode."""
        return scorer_of(network, self.config, self.variant, self.device)

    def fit(self, network: nn.Module, seconds: float) -> float:
        """Estimated duration of a validation, from the time of some of its tiles; it is not shortened."""
        training = network.training
        scorer, image = self.scorer(network.eval()), self.tiles.image
        some = image[: scorer.batch_size]
        for _ in range(2):  # the first pass selects kernels
            begin = time.perf_counter()
            scorer(some)
            elapsed = time.perf_counter() - begin
        network.train(training)
        return elapsed * len(image) / len(some)

    def content(self, network: nn.Module, score: TileResult, step: int) -> dict[str, Any]:
        """What best.pt holds."""
        return {
            "weights": network.state_dict(), "config": dump_run(self.config), "variant": asdict(self.variant),
            "step": step, "auc": score.auc,
        }  # fmt: skip
