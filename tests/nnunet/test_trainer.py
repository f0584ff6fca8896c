"""nnU-Net itself with Hasten's trainer: `nnUNetv2_train`'s entry, its checkpoints, and going on with --c."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ladder.nnunet_raw import DATASET
from hasten.cases.phantom import write_phantoms
from hasten.cli.nnunet import trainer_folder

pytest.importorskip("nnunetv2")
TINY = """
import torch
from nnUNetTrainerHasten import nnUNetTrainerHasten


class nnUNetTrainerTiny(nnUNetTrainerHasten):
    def __init__(self, plans: dict, configuration: str, fold: int, dataset_json: dict, device=torch.device("cuda")):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 2, 3, 2
"""
RUN = """
import sys
from nnunetv2.{module} import {entry}
if __name__ == "__main__":
    sys.argv = ["nnunet", *sys.argv[1:]]
    {entry}()
"""


@pytest.mark.slow
@pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
def test_nnunet_trains_and_goes_on(tmp_path: Path, configuration: str) -> None:
    raw = tmp_path / "raw" / DATASET
    source = write_phantoms(tmp_path / "set", num_cases=10, shape=(24, 28, 24))
    for folder, ending in (("imagesTr", "_0000.nii.gz"), ("labelsTr", ".nii.gz")):
        (raw / folder).mkdir(parents=True)
        for path in sorted((source / folder).glob("*.nii.gz")):
            (raw / folder / path.name.replace(".nii.gz", ending)).symlink_to(path)
    labels = json.loads((source / "dataset.json").read_text())["labels"]
    content = {"channel_names": {"0": "MRI"}, "labels": {name: int(value) for value, name in labels.items()}}
    (raw / "dataset.json").write_text(json.dumps({**content, "numTraining": 10, "file_ending": ".nii.gz"}))
    (tmp_path / "ext").mkdir()
    (tmp_path / "ext/nnUNetTrainerTiny.py").write_text(TINY)
    names = {"raw": "nnUNet_raw", "pre": "nnUNet_preprocessed", "results": "nnUNet_results", "ext": "nnUNet_extTrainer"}
    env = {
        **os.environ, **{name: str(tmp_path / folder) for folder, name in names.items()}, "nnUNet_n_proc_DA": "1",
        "nnUNet_def_n_proc": "1", "nnUNet_compile": "f",
        "PYTHONPATH": os.pathsep.join([str(trainer_folder()), *sys.path]),
    }  # fmt: skip

    def run(module: str, entry: str, *arguments: str) -> str:
        script = tmp_path / f"{entry}.py"
        script.write_text(RUN.format(module=module, entry=entry))
        words = [sys.executable, str(script), *arguments]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    planning = ("experiment_planning.plan_and_preprocess_entrypoints", "plan_and_preprocess_entry")
    run(*planning, "-d", "1", "-c", configuration, "-np", "1")
    plans = tmp_path / "pre" / DATASET / "nnUNetPlans.json"
    plan = json.loads(plans.read_text())
    architecture = plan["configurations"][configuration]["architecture"]["arch_kwargs"]
    architecture["features_per_stage"] = [4] * len(architecture["features_per_stage"])
    plan["configurations"][configuration]["batch_size"] = 2
    plans.write_text(json.dumps(plan))
    words = ("1", configuration, "0", "-tr", "nnUNetTrainerTiny", "-device", "cpu")
    told = run("run.run_training", "run_training_entry", *words)
    assert "own data loaders" not in told
    assert "Training done." in told
    [fold] = (tmp_path / "results").rglob("fold_0")
    assert (fold / "checkpoint_final.pth").is_file()
    assert "Training done." in run("run.run_training", "run_training_entry", *words, "--c")
