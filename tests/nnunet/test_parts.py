"""The parts of the trainer that need nnU-Net and no training."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hasten.cli.nnunet import trainer_folder

pytest.importorskip("nnunetv2.training.nnUNetTrainer.nnUNetTrainer")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(trainer_folder())
    yield importlib.import_module("nnUNetTrainerHasten")
    sys.modules.pop("nnUNetTrainerHasten", None)


class Labels:
    __module__ = "nnunetv2.utilities.label_handling.label_handling"


def trainer(kind: Any, tmp_path: Path, **other: Any) -> Any:
    """Without nnU-Net's start, which reads plans and writes logs."""
    made = object.__new__(kind)
    configuration = SimpleNamespace(patch_size=[8, 8, 8], spacing=[1.0, 1.0, 1.0], use_mask_for_norm=[False])
    plans = SimpleNamespace(plans_name="nnUNetPlans", dataset_name="Dataset001_X", transpose_forward=[0, 1, 2])
    made.__dict__.update(
        {"is_cascaded": False, "configuration_manager": configuration, "plans_manager": plans, "num_input_channels": 1,
         "configuration_name": "3d_fullres", "preprocessed_dataset_folder": str(tmp_path / "nnUNetPlans_3d_fullres"),
         "dataset_class": None, "label_manager": Labels(), "local_rank": 0,
         "log_file": str(tmp_path / "log.txt")} | other
    )  # fmt: skip
    return made


class Cases:
    identifiers = ("a",)

    def load_case(self, name: str) -> Any:
        properties = {"spacing": [2.0, 1.0, 1.0], "shape_after_cropping_and_before_resampling": (10, 12, 14)}
        return np.zeros((1, 20, 12, 14), np.float32), None, None, properties


def test_variants_are_found_under_their_names(module: Any) -> None:
    pytest.importorskip("timm", reason="nnU-Net looks through all its trainers", exc_type=ImportError)
    for name in ("_1epoch", "_10epochs", "_250epochs_NoMirroring", "NoMirroring", "_onlyMirror01", "Adam"):
        result = getattr(module, f"nnUNetTrainerHasten{name}")
        assert result.__name__ == f"nnUNetTrainerHasten{name}"
        assert result.__mro__[1:3] == (
            module.nnUNetTrainerHasten, module.recursive_find_python_class(
                str(Path(module.nnunetv2.__path__[0]) / "training/nnUNetTrainer"), f"nnUNetTrainer{name}",
                "nnunetv2.training.nnUNetTrainer",
            )
        )  # fmt: skip
    for name in ("nnUNetTrainerHasten_3epochs", "nnUNetTrainerHastenBenchmark_5epochs_noDataLoading", "nnUNetTrainer2"):
        assert not hasattr(module, name)


def test_what_hasten_has_no_part_for(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm", reason="nnU-Net looks through all its trainers", exc_type=ImportError)
    own = module.nnUNetTrainerHastenDA5
    assert trainer(module.nnUNetTrainerHasten, tmp_path)._why_not() == ""
    assert "an augmentation of its own" in trainer(own, tmp_path)._why_not()
    assert trainer(module.nnUNetTrainerHasten, tmp_path, is_cascaded=True)._why_not() == ""
    monkeypatch.setattr(module.nnUNetTrainer, "get_dataloaders", lambda self: ("train", "validation"))
    assert trainer(own, tmp_path).get_dataloaders() == ("train", "validation")
    assert "nnU-Net's own data loaders take its place" in (tmp_path / "log.txt").read_text()


def test_a_first_stage_that_has_not_predicted_every_case(module: Any, tmp_path: Path) -> None:
    folder = tmp_path / "predicted_next_stage/3d_cascade_fullres"
    made = trainer(module.nnUNetTrainerHasten, tmp_path, folder_with_segs_from_previous_stage=str(folder))
    made.configuration_manager.previous_stage_name = "3d_lowres"
    with pytest.raises(ValueError, match=r"3d_cascade_fullres: .* 2 of 2 .* 3d_lowres FOLD -tr"):
        made._check_first_stage(["a", "b.c"])
    folder.mkdir(parents=True)
    (folder / "a.b2nd").touch()
    with pytest.raises(ValueError, match=r"no prediction of 1 of 2 cases, such as b\.c"):
        made._check_first_stage(["a", "b.c"])
    (folder / "b.c.npz").touch()
    made._check_first_stage(["a", "b.c"])


def test_classes_of_a_plan_that_are_not_nnunets(module: Any, tmp_path: Path) -> None:
    kind = module.nnUNetTrainerHasten
    assert "the data set Cases is not nnU-Net's" in trainer(kind, tmp_path, dataset_class=Cases)._why_not()
    assert "the label manager SimpleNamespace" in trainer(kind, tmp_path, label_manager=SimpleNamespace())._why_not()


def test_a_checkpoint_of_another_optimizer(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, name: str) -> None:
        raise ValueError("loaded state dict has a different number of parameter groups")

    monkeypatch.setattr(module.nnUNetTrainer, "load_checkpoint", refuse)
    with pytest.raises(ValueError, match=r"a.pth: .*optimizer .*parameter groups.*HASTEN_OPTIMIZER"):
        trainer(module.nnUNetTrainerHasten, tmp_path).load_checkpoint("a.pth")


def test_cases_that_are_not_preprocessed(module: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"preprocessed .*nnUNetv2_preprocess -d Dataset001_X -plans"):
        trainer(module.nnUNetTrainerHasten, tmp_path).get_dataloaders()


def test_cases_of_another_plan(module: Any, tmp_path: Path) -> None:
    made = trainer(module.nnUNetTrainerHasten, tmp_path)
    made._check_plan(Cases())
    made.configuration_manager.spacing = [1.5, 1.0, 1.0]
    with pytest.raises(ValueError, match=r"a: preprocessed .*\(1, 20, 12, 14\).*\(1, 13, 12, 14\)"):
        made._check_plan(Cases())
    made.configuration_manager.spacing = [1.0, 1.0]  # 2-D: slices stay as they are
    with pytest.raises(ValueError, match=r"asks for \(1, 10, 12, 14\)"):
        made._check_plan(Cases())
