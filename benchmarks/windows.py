"""Dice and seconds of a validation by whole volumes against windows of the training's patch.

The hippocampus recipe's network and split, trained for 200 steps on patches of several sizes, with instance and with
batch norm; its last averaged weights label the validation cases twice: each volume in one piece, and by windows that
overlap by a quarter. The same weights in both, so that only the way differs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import phantoms
from benchmarks.harness import Claim, arguments, busy_machine, finish

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig

ARMS = (((32, 32, 32), 6, "instance"), ((32, 32, 32), 6, "batch"), ((32, 48, 32), 4, "instance"),
        ((40, 48, 40), 2, "instance"))  # fmt: skip
"""Patch, samples in a batch, norm. The median volume has 36x50x35 voxels, padded to 40x56x40 where it is not cut."""
PIECES = {"whole": 1e6, "windows": 0.0}
"""`infer.whole_up_to` of each way."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(str(__doc__).splitlines()[0], argv, seeds={"type": int, "help": "default 5, quick 1"})
    others = busy_machine()
    results: dict[str, list[float]] = {}
    claims = []
    with tempfile.TemporaryDirectory() as scratch:
        data = given.data or phantoms(Path(scratch) / "set", 5, {"shape": (40, 56, 40)})
        for seed in range(given.seeds or (1 if given.quick else 5)):
            for arm in ARMS[:1] if given.quick else ARMS:
                one = arm_of(arm, data, seed, Path(scratch), steps=4 if given.quick else 200)
                for name, value in one.items():
                    results.setdefault(f"{label(arm)}/{name}", []).append(value)
    for arm in ARMS[:1] if given.quick else ARMS:
        gains = results[f"{label(arm)}/gain"]
        claims.append(Claim.at_least(f"{label(arm)}: Dice that windows gain, the least of the seeds", min(gains), 0.0))
    settings = {"about": __doc__, "arms": [label(arm) for arm in ARMS]}
    finish("windows", claims, results, given.out, given.quick, settings=settings, others_before=others)


def label(arm: tuple[tuple[int, int, int], int, str]) -> str:
    return f"{'x'.join(map(str, arm[0]))} {arm[2]}"


def arm_of(
    arm: tuple[tuple[int, int, int], int, str], data: Path, seed: int, scratch: Path, *, steps: int
) -> dict[str, float]:
    """Dice and seconds of both ways, and what windows gain."""
    import hasten
    from hasten.config.load import load_run

    patch, batch, norm = arm
    channels = [16, 32, 64, 128] if steps > 10 else [4, 8, 8, 8]
    none = [f"sample.{name}_prob=0" for name in ("affine", "brightness", "contrast", "gamma", "noise")]
    config = load_run(None, [
        f"data.source={data}", "data.split.by=fraction", "data.split.fraction=0.2", f"cache.dir={scratch / 'cache'}",
        f"sample.patch={list(patch)}", f"sample.batch_size={batch}", "sample.flip_prob=[0,0,0]", *none,
        f"network.norm={norm}", f"network.channels={channels}", "network.strides=[[2,2,2],[2,2,2],[2,2,2]]",
        f"train.seed={seed}", f"train.steps={steps}", f"train.validate_every={steps}", "train.learning_rate=0.01",
        "infer.overlap=0.25", "observe.trackers=[]",
    ])  # fmt: skip
    with tempfile.TemporaryDirectory(dir=scratch) as run:
        hasten.train(config, Path(run) / "run")
        found = scores(config, Path(run) / "run" / "checkpoints" / "best.pt")
    return {**found, "gain": found["windows_dice"] - found["whole_dice"]}


def scores(config: RunConfig, weights: Path) -> dict[str, float]:
    import torch

    from hasten.engine.infer import infer_labels
    from hasten.engine.job import plan_run
    from hasten.engine.metric import counts_of, dice_of
    from hasten.engine.predict import load_model
    from hasten.engine.together import arena_of

    planned = plan_run(config)
    arena = arena_of(planned)
    cases = arena.index(tuple(case.id for case in planned.validation))
    content: dict[str, Any] = torch.load(weights, map_location="cpu", weights_only=True)
    found = {}
    for way, limit in PIECES.items():
        tree = {**content["config"], "infer": {**content["config"]["infer"], "whole_up_to": limit}}
        model = load_model({**content, "config": tree}, where=str(weights))
        began = time.perf_counter()
        counts = torch.zeros(len(cases), len(planned.class_names), 3, dtype=torch.int64)
        for at, labels in infer_labels(model.network, [arena.image(case) for case in cases], model.inference):
            counts[at] = counts_of(labels, arena.label(cases[at]), num_classes=arena.num_classes, regions=())
        found[f"{way}_s"] = time.perf_counter() - began
        found[f"{way}_dice"] = dice_of(counts, planned.class_names).mean
    return found


if __name__ == "__main__":
    main()
