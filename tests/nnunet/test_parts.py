"""The parts of the trainer that need nnU-Net and no training."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    """A data set class that is not nnU-Net's."""


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
    assert "cascade" in trainer(module.nnUNetTrainerHasten, tmp_path, is_cascaded=True)._why_not()
    monkeypatch.setattr(module.nnUNetTrainer, "get_dataloaders", lambda self: ("train", "validation"))
    assert trainer(own, tmp_path).get_dataloaders() == ("train", "validation")
    assert "nnU-Net's own data loaders take its place" in (tmp_path / "log.txt").read_text()


def test_classes_of_a_plan_that_are_not_nnunets(module: Any, tmp_path: Path) -> None:
    kind = module.nnUNetTrainerHasten
    assert "the data set Cases is not nnU-Net's" in trainer(kind, tmp_path, dataset_class=Cases)._why_not()
    assert "the label manager SimpleNamespace" in trainer(kind, tmp_path, label_manager=SimpleNamespace())._why_not()


def test_cases_that_are_not_preprocessed(module: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"preprocessed .*nnUNetv2_preprocess -d Dataset001_X -plans"):
        trainer(module.nnUNetTrainerHasten, tmp_path).get_dataloaders()
