from __future__ import annotations

from pathlib import Path

import pytest

from hasten.phantoms.cells import write_cells
from hasten.phantoms.organs import write_phantoms
from hasten.recipes.load import load_recipe
from hasten.recipes.run import run_of

TINY = {"shape": (8, 16, 16), "spacing": (10.0, 8.0, 8.0)}


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("data") / "twelve", num_cases=12, **TINY)


def test_the_last_cases_by_name_are_held_out_unless_the_user_splits(twelve: Path) -> None:
    spleen = load_recipe("spleen")
    config = run_of(spleen, [f"data.source={twelve}", "train.steps=7"])
    assert (config.data.source, config.train.target, config.train.steps) == (str(twelve), 0.94, 7)
    split = config.data.split
    assert (split.by, split.validation) == ("list", tuple(f"phantom_{index:03d}" for index in range(3, 12)))
    own = run_of(spleen, [f"data.source={twelve}", "data.split.fraction=0.3"]).data.split
    assert (own.by, own.fraction, own.validation) == (None, 0.3, ())


def test_absent_data_say_what_to_fetch_how_large_it_is_and_under_which_licence(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HASTEN_DATA", str(tmp_path))
    for overrides in ([], [f"data.source={tmp_path / 'Task09_Spleen'}"]):
        with pytest.raises(ValueError) as error:
            run_of(load_recipe("spleen"), overrides)
        output = str(error.value)
        assert output.startswith(f"{tmp_path / 'Task09_Spleen'}: is not there")
        for part in ("1.5 GiB", "CC-BY-SA 4.0", "hasten recipe data spleen", "data.source=", "HASTEN_DATA"):
            assert part in output


def test_a_recipe_of_one_s_own_may_name_its_data_beside_it(twelve: Path) -> None:
    path = twelve.parent / "own.yaml"
    path.write_text("name: own\ntitle: Own\nlabels: {0: background, 1: spleen}\nrun: {data: {source: twelve}}\n")
    assert run_of(load_recipe(path), base=path.parent).data.source == str(twelve)
    assert run_of(load_recipe(path), [f"data.source={twelve}"], base=Path("elsewhere")).data.source == str(twelve)
    path.write_text("name: own\ntitle: Own\nlabels: {0: background, 1: spleen}\n")
    with pytest.raises(ValueError, match=r"^own: .*no public data set; .*data\.source=FOLDER"):
        run_of(load_recipe(path))


def test_labels_outside_the_recipe_s_classes_are_told(tmp_path: Path) -> None:
    out = write_cells(tmp_path / "cells", num_cases=3, shape=(32, 32), radius=8)
    with pytest.raises(ValueError, match=r"cells: .*values 1, .*recipe membrane"):
        run_of(load_recipe("membrane"), [f"data.source={out}"])
    (out / "labels.json").write_text('{"0": "background", "1": "cell", "4": "nucleus"}')
    with pytest.raises(ValueError, match=r"cells: .*values 4, .*recipe microsc"):
        run_of(load_recipe("microscopy"), [f"data.source={out}"])


def test_the_scaling_study_keeps_sixteen_images_and_their_rate_on_each_worker(tmp_path: Path) -> None:
    from hasten.scaling.study import weakly_scaled
    from hasten.training.plan import plan_run

    out = write_cells(tmp_path / "cells", num_cases=3, shape=(32, 32), radius=8)
    config = run_of(load_recipe("microscopy"), [f"data.source={out}"])
    assert (config.train.metric, config.train.target) == ("iou", 0.85)
    on_four = weakly_scaled(plan_run(config).config, 4)
    assert (on_four.sample.batch_size, on_four.train.learning_rate_batch, on_four.train.steps) == (64, 16, 400)
