"""How far the folder of `hasten export --format onnx` predicts what `hasten predict` does, on real data.

On each set a run with `train.budget=90s`, whose validation cases `hasten predict` predicts in the run's own precision,
and the folder's predict.py; `same` is the share of equal voxels of all cases, `hasten_s` and `script_s` the seconds
that each takes for them, from process start, taking turns. The ways are compared in one process: in bf16, with the last
layer or the last three in float32, and in float32 that is rounded where autocast rounds. Of each, `voxels` is the share
that float32 (of the last one, bf16) predicts the same, `case_s` the median of all cases.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from benchmarks.harness import ROOT, Claim, arguments, busy_machine, child_environment, finish, interleave
from benchmarks.time_limit import limited_run
from hasten import load_predictor
from hasten.cases.formats import read_file
from hasten.nets.surgery.fallback import keep_fp32
from hasten.prediction.predict import Predictor

ABOUT = str(__doc__)
SETS = ("hippocampus", "left_atrium", "cardiac", "nuclei")
LAST = {"last layer": 1, "last three layers": 3}
WAYS = ("fp32", "bf16", *LAST, "rounded")
GOAL = 0.9999


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        ABOUT.splitlines()[0], argv,
        sets={"nargs": "+", "choices": SETS, "default": SETS},
        shared={"type": Path, "default": ROOT.parent / "shared" / "data", "help": "folder of the real data sets"},
        cases={"type": int, "default": 6, "help": "validation cases of each set"},
    )  # fmt: skip
    others, results = busy_machine(), dict[str, list[float]]()
    for name in given.sets[: 1 if given.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            limited_run(given.shared / name, 20 if given.quick else 90, scratch, ["data.split.seed=0"])
            validated = json.loads((scratch / "run" / "plan.json").read_text())["cases"]["validation"].values()
            images = [Path(case["image"]["path"]) for case in validated][: 2 if given.quick else given.cases]
            figures = folders(scratch, images, 1 if given.quick else 5) | ways(scratch / "run", images)
        print(f"{name}: {figures}", file=sys.stderr)
        results |= {f"{name}/{figure}": values for figure, values in figures.items()}
    claims = [
        Claim.at_least(f"{series[:-5]}: voxels as of `hasten predict`", values[0], GOAL)
        for series, values in results.items()
        if series.endswith("/same")
    ]
    finish("export", claims, results, given.out, given.quick, settings={"about": ABOUT}, others_before=others)


def folders(scratch: Path, images: Sequence[Path], rounds: int) -> dict[str, list[float]]:
    """The label maps of both programs, compared."""

    def shell(*words: object) -> None:
        subprocess.run([sys.executable, *map(str, words)], env=child_environment(), check=True, capture_output=True)

    run, model, ours, script = (scratch / name for name in ("run", "model", "ours", "script"))
    shell("-m", "hasten", "export", run, "--format", "onnx", "--out", model)
    arms = {
        "hasten_s": lambda: shell("-m", "hasten", "predict", run, *images, "--out", ours, "--overwrite"),
        "script_s": lambda: shell(model / "predict.py", *images, "--out", script, "--overwrite"),
    }
    figures = interleave(arms, rounds)
    maps = [path for path in ours.iterdir() if path.suffix != ".json"]
    assert len(maps) == len(images)
    pairs = [(read_file(path, label=True).array, read_file(script / path.name, label=True).array) for path in maps]
    return figures | {"same": [equal_share(pairs)]}


def equal_share(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Of the voxels of all pairs of label maps."""
    return sum(int((a == b).sum()) for a, b in pairs) / sum(a.size for a, _ in pairs)


def ways(run: Path, images: Sequence[Path]) -> dict[str, list[float]]:
    """Of each way the share of equal voxels, and seconds."""
    volumes, predictors = [read_file(path) for path in images], {way: predictor(run, way) for way in WAYS}
    labels: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    figures: dict[str, list[float]] = {f"{way}/case_s": [] for way in WAYS}
    flat = predictors["fp32"].model.inference.spatial_dims == 2
    for case, volume in enumerate(volumes[:1] + volumes):
        array, place = (volume.array[:, 0], None) if flat else (volume.array, volume.affine)
        for way, predict in predictors.items():
            begin = time.perf_counter()
            label = predict(array, affine=place)
            if case:  # the first one, which warms up, comes again
                figures[f"{way}/case_s"].append(time.perf_counter() - begin)
                labels[way].append(label)
    for way in WAYS[1:]:
        compared = labels["bf16" if way == "rounded" else "fp32"]
        figures[f"{way}/voxels"] = [equal_share(list(zip(labels[way], compared, strict=True)))]
    return figures


def predictor(run: Path, way: str) -> Predictor:
    """A run's predictor that computes in this way."""
    made = load_predictor(run)
    precision = "fp32" if way in ("fp32", "rounded") else "bf16"
    model = dataclasses.replace(made.model, inference=dataclasses.replace(made.model.inference, precision=precision))
    layers = [name for name, module in model.network.named_modules() if isinstance(module, _ConvNd)]
    if way in LAST:
        keep_fp32(model.network, layers[-LAST[way] :])
    if way == "rounded":
        for layer in map(model.network.get_submodule, layers):
            for weight in layer.parameters():
                weight.data = rounded(weight.data)
            layer.register_forward_pre_hook(lambda _, given: tuple(map(rounded, given)))
            layer.register_forward_hook(lambda _, __, output: rounded(output))
    return dataclasses.replace(made, model=model)


def rounded(value: Any) -> Any:
    return value.bfloat16().float() if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    main()
