"""Dice and seconds of a validation by whole volumes against windows of the training's patch.

The hippocampus recipe's network and split, trained for 200 steps on patches of several sizes, with instance and with
batch norm; its last averaged weights label the validation cases twice: each volume in one piece, and by windows that
overlap by a quarter. The same weights in both, so that only the way differs.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data import phantoms
from benchmarks.harness import Claim, arguments, busy_machine, finish

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    patch: tuple[int, int, int]
    batch_size: int
    norm: str

    @property
    def name(self) -> str:
        return f"{'x'.join(map(str, self.patch))} {self.norm}"


ARMS = (
    Arm(patch=(32, 32, 32), batch_size=6, norm="instance"),
    Arm(patch=(32, 32, 32), batch_size=6, norm="batch"),
    Arm(patch=(32, 48, 32), batch_size=4, norm="instance"),
    Arm(patch=(40, 48, 40), batch_size=2, norm="instance"),
)
"""The median volume has 36x50x35 voxels, padded to 40x56x40 where it is not cut."""
WHOLE_UP_TO = {"whole": 10**9, "windows": 0}
"""Voxels up to which a volume is not cut, of each way."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(str(__doc__).splitlines()[0], argv, seeds={"type": int, "help": "default 5, quick 1"})
    others = busy_machine()
    arms, seeds, steps, channels = (ARMS, 5, 200, (16, 32, 64, 128))
    if given.quick:
        arms, seeds, steps, channels = (ARMS[:1], 1, 4, (4, 8, 8, 8))
    results: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data = given.data or phantoms(Path(scratch) / "set", 5, {"shape": (40, 56, 40)})
        for seed in range(given.seeds or seeds):
            for arm in arms:
                config = config_of(arm, data, seed, steps=steps, channels=channels)
                for name, value in measured(config, Path(scratch)).items():
                    results.setdefault(f"{arm.name}/{name}", []).append(value)
    claims = [
        Claim.at_least(
            f"{arm.name}: Dice that windows gain, the least of the seeds", min(results[f"{arm.name}/gain"]), 0.0
        )
        for arm in arms
    ]
    settings = {"about": __doc__, "arms": [arm.name for arm in arms]}
    finish("windows", claims, results, given.out, given.quick, settings=settings, others_before=others)


def config_of(arm: Arm, data: Path, seed: int, *, steps: int, channels: Sequence[int]) -> RunConfig:
    from hasten.config.load import load_run

    none = [f"sample.{name}_prob=0" for name in ("affine", "brightness", "contrast", "gamma", "noise")]
    return load_run(None, [
        f"data.source={data}", "data.split.by=fraction", "data.split.fraction=0.2",
        f"sample.patch={list(arm.patch)}", f"sample.batch_size={arm.batch_size}", "sample.flip_prob=[0,0,0]", *none,
        f"network.norm={arm.norm}", f"network.channels={list(channels)}", "network.strides=[[2,2,2],[2,2,2],[2,2,2]]",
        f"train.seed={seed}", f"train.steps={steps}", f"train.validate_every={steps}", "train.learning_rate=0.01",
        "infer.overlap=0.25", "observe.trackers=[]",
    ])  # fmt: skip


def measured(config: RunConfig, scratch: Path) -> dict[str, float]:
    """Train; then Dice and seconds of both ways, and what windows gain. Cases are prepared once, in `scratch`."""
    import hasten

    cache = dataclasses.replace(config.cache, dir=str(scratch / "cache"))
    config = dataclasses.replace(config, cache=cache)
    with tempfile.TemporaryDirectory(dir=scratch) as run:
        hasten.train(config, Path(run) / "run")
        result = scores(config, Path(run) / "run" / "checkpoints" / "best.pt")
    return {**result, "gain": result["windows_dice"] - result["whole_dice"]}


def scores(config: RunConfig, weights: Path) -> dict[str, float]:
    import torch

    from hasten.evaluation.dice import counts_of, dice_of
    from hasten.prediction.infer import infer_labels
    from hasten.prediction.model import load_model
    from hasten.training.plan import plan_run
    from hasten.training.prepare_cases import arena_of

    planned = plan_run(config)
    arena = arena_of(planned)
    cases = arena.index(tuple(case.id for case in planned.validation))
    model = load_model(torch.load(weights, map_location="cpu", weights_only=True), where=str(weights))
    results = {}
    for way, limit in WHOLE_UP_TO.items():
        how = dataclasses.replace(model.inference, whole_up_to=limit)
        began = time.perf_counter()
        counts = torch.zeros(len(cases), len(planned.class_names), 3, dtype=torch.int64)
        for at, labels in infer_labels(model.network, [arena.image(case) for case in cases], how):
            counts[at] = counts_of(labels, arena.label(cases[at]), num_classes=arena.num_classes, regions=())
        results[f"{way}_s"] = time.perf_counter() - began
        results[f"{way}_dice"] = dice_of(counts, planned.class_names).mean
    return results


if __name__ == "__main__":
    main()
