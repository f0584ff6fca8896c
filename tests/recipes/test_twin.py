from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hasten.cases.sources import load_case_set
from hasten.config.load import load_run
from hasten.recipes.load import load_recipe, recipe_names
from hasten.recipes.run import twin_of, write_twin
from tests.recipes.small import small_twin
from tests.recipes.test_golden_losses import NAMES as OF_GOLDEN_LOSSES

SEGMENTATION = [name for name in recipe_names() if load_recipe(name).kind == "segmentation"]


@pytest.mark.parametrize("name", ["spleen", "brats", "microscopy", "membrane"])
def test_reduced_phantoms_train_with_settings_of_their_own(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.reduced is not None
    config = load_run(write_twin(recipe, small_twin(recipe, reduced=True), tmp_path / "twin"))
    assert config.train.target == (recipe.reduced.target or recipe.target)
    assert config.train.steps == recipe.reduced.run["train"]["steps"]
    assert len(config.data.split.validation) == (5 if name == "spleen" else 0)


def test_what_cannot_be_written_is_told_and_nothing_is(tmp_path: Path) -> None:
    spleen, hippocampus = load_recipe("spleen"), load_recipe("hippocampus")
    with pytest.raises(ValueError, match="9 phantoms are too few, as the last 9 are for validation"):
        write_twin(spleen, small_twin(spleen, cases=9), tmp_path / "few")
    assert not (tmp_path / "few").exists()
    with pytest.raises(ValueError, match="hippocampus: has no reduced phantoms; leave out --reduced"):
        twin_of(hippocampus, reduced=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(ValueError, match="is not empty; choose another --to"):
        write_twin(hippocampus, small_twin(hippocampus), tmp_path / "full")


@pytest.mark.parametrize("name", sorted({*SEGMENTATION} - {*OF_GOLDEN_LOSSES}))
def test_phantoms_hold_the_recipe_s_classes_and_a_run_that_trains(name: str, tmp_path: Path) -> None:
    """Two steps, with all of the recipe's settings but a smaller patch and network."""
    from hasten.training.run import train

    recipe = load_recipe(name)
    number = max(4, recipe.validation_last + 2)
    path = write_twin(recipe, small_twin(recipe, cases=number), tmp_path / "twin")
    config = load_run(path)
    cases = load_case_set(config.data.source)
    assert len(cases.cases) == number
    assert set(cases.labels) == set(recipe.labels)
    assert recipe.twin is not None
    assert (config.train.target, config.train.metric) == (recipe.twin.target or recipe.target, recipe.metric)
    assert len(config.data.split.validation) == recipe.validation_last
    flat = recipe.run.get("data", {}).get("spatial_dims") == 2
    patch, stride = ([1, 16, 16], [1, 2, 2]) if flat else ([8, 16, 16], [2, 2, 2])
    config = load_run(path, [
        f"sample.patch={patch}", f"infer.patch={patch}", "network.channels=[4,8]", f"network.strides=[{stride}]",
        "sample.batch_size=2", "train.steps=2", "train.validate_every=2", "train.checkpoint_every=2",
        "train.device=cpu", "train.precision=fp32", "train.compile=false", "train.channels_last=false",
        "train.learning_rate=0.001", "prepare.spacing=[0,0,0]", "observe.trackers=[]",
        "observe.monitor_every=0", f"cache.dir={tmp_path / 'cache'}",
    ])  # fmt: skip
    summary = train(config, tmp_path / "run")
    assert summary["steps"] == 2
    assert summary["best"]["value"] is not None
    assert (tmp_path / "run" / "checkpoints" / "last.pt").is_file()


def test_slides_have_a_run_beside_them_too(tmp_path: Path) -> None:
    from hasten.pathology.config import load

    recipe = load_recipe("pathology")
    twin = dataclasses.replace(twin_of(recipe, reduced=True, cases=3), shape=(1, 256, 256))
    path = write_twin(recipe, twin, tmp_path / "slides")
    config = load(path)
    assert Path(config.data.source).resolve() == tmp_path / "slides"
    assert config.tiles.size == 64
    assert len(list((tmp_path / "slides" / "slides").iterdir())) == 3
