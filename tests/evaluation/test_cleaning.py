"""Which cleaning is chosen, against trying all of them in full."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from hasten.evaluation import crossval
from hasten.evaluation.crossval import choose_cleanings
from hasten.evaluation.evaluate import evaluate_pairs, score_case, summary_of
from hasten.evaluation.pairs import Pair, Pairs
from hasten.prediction.postprocess import Cleaning, postprocessed

LABELS = {0: "background", 1: "a", 2: "b"}
SPACING = (2.0, 1.0, 0.5)  # D, H, W


def save(path: Path, array: np.ndarray) -> Path:
    nib.save(nib.Nifti1Image(array.transpose(2, 1, 0), np.diag([*SPACING[::-1], 1.0])), path)
    return path


def pairs_of(folder: Path, maps: list[tuple[np.ndarray, np.ndarray]], regions: dict[str, tuple[int, ...]]) -> Pairs:
    pairs = [
        Pair(case=f"c{n}", prediction=save(folder / f"p{n}.nii", one), label=save(folder / f"l{n}.nii", other))
        for n, (one, other) in enumerate(maps)
    ]
    where = {"predictions": folder, "source": folder}
    return Pairs(pairs=tuple(pairs), labels=LABELS, regions=regions, ignore=None, num_labelled=len(pairs), **where)


def random_maps(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two blocks, and predictions of them with specks and holes."""
    rng, maps = np.random.default_rng(seed), []
    for _ in range(3):
        label = np.zeros((8, 9, 10), np.uint8)
        label[1:6, 1:5, 1:6] = 1
        label[2:7, 5:8, 4:9] = 2
        noise = rng.random(label.shape)
        maps.append((np.where(noise < 0.04, rng.integers(0, 3, label.shape), label).astype(np.uint8), label))
    return maps


def mean_dice(pairs: Pairs, maps: list[tuple[np.ndarray, np.ndarray]], done: dict[int, Cleaning]) -> dict[str, float]:
    scores = [
        score_case("", postprocessed(one, done, SPACING), other, pairs.members, spacing=SPACING, surfaces=False)
        for one, other in maps
    ]
    return {
        name: summary_of([score.dice for case in scores for score in case if score.name == name]).mean
        for name in pairs.members
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("regions", [{}, {"whole": (1, 2), "core": (2,)}])
def test_the_best_of_all_that_make_no_class_worse(
    tmp_path: Path, seed: int, regions: dict[str, tuple[int, ...]]
) -> None:
    maps = random_maps(seed)
    pairs = pairs_of(tmp_path, maps, regions)
    evaluation = evaluate_pairs(pairs, surfaces=False)
    chosen = choose_cleanings(evaluation)
    before = mean_dice(pairs, maps, {})
    assert chosen.before == pytest.approx(before)
    assert chosen.after == pytest.approx(mean_dice(pairs, maps, chosen.cleanings))
    assert all(chosen.after[name] >= before[name] for name in before)
    assert chosen.cleanings
    for value, name in ((1, "a"), (2, "b")):
        candidates = crossval._candidates(name, crossval._median_volume(evaluation, name))
        best = max(mean_dice(pairs, maps, {value: each})[name] for each in candidates)
        if value in chosen.cleanings:
            assert mean_dice(pairs, maps, {value: chosen.cleanings[value]})[name] == pytest.approx(best)


def test_ignored_voxels_are_cleaned_with_the_others_and_do_not_count(tmp_path: Path) -> None:
    label = np.full((9, 9, 10), 3, np.uint8)  # but for every other slice, ignored
    label[::2] = 0
    label[::2, 2:6, 2:6] = 1
    prediction = np.zeros_like(label)
    prediction[:, 2:6, 2:6] = 1
    prediction[4, 8, 8] = 1
    pairs = dataclasses.replace(pairs_of(tmp_path, [(prediction, label)] * 2, {}), ignore=3)
    evaluation = evaluate_pairs(pairs, surfaces=False)
    chosen = choose_cleanings(evaluation)
    # One component through annotated and ignored slices stays whole; the speck goes.
    assert chosen.cleanings[1].keep_largest
    assert chosen.before["a"] < chosen.after["a"] == 1.0
