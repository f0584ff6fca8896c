"""nnU-Net itself with Hasten's trainer: `nnUNetv2_train`'s entry, its checkpoints, and going on with --c."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ladder.nnunet_raw import DATASET
from hasten.cli.nnunet import trainer_folder
from hasten.phantoms.organs import write_phantoms

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


RANK = """
import sys
import torch
from torch import distributed
from nnunetv2.run.run_training import get_trainer_from_args
from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as nnunet
if __name__ == "__main__":
    distributed.init_process_group("gloo", init_method=sys.argv[2], rank=int(sys.argv[1]), world_size=2)
    ddp = nnunet.DDP
    nnunet.DDP = lambda network, device_ids: ddp(network)  # nnU-Net has DDP on GPUs only
    trainer = get_trainer_from_args("1", "3d_fullres", 0, "nnUNetTrainerTiny", "nnUNetPlans")
    trainer.device, trainer.grad_scaler = torch.device("cpu"), None
    trainer.run_training()
    weights = torch.cat([weight.detach().flatten() for weight in trainer.network.parameters()])
    print("batch", float(next(trainer.dataloader_val)["data"].sum()))
    print("weights", weights.double().norm().item(), bool(weights.isfinite().all()))
"""
ANY_LAYER = "import torch\n\n\ndef __getattr__(name):\n    return type(name, (torch.nn.Module,), {})\n"
"""timm's modules, where it isn't installed: nnU-Net imports all its trainers, also those of networks that use timm."""


@dataclass(frozen=True)
class RunPlan:
    """Ten phantoms, preprocessed for a plan with a tiny network."""

    folder: Path
    configuration: str
    env: dict[str, str]

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        path = self.folder / "script.py"
        path.write_text(script)
        words = [sys.executable, str(path), *arguments]
        return subprocess.Popen(words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, module: str, entry: str, *arguments: str) -> str:
        return ended(self.start(RUN.format(module=module, entry=entry), *arguments))


def ended(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    return out


def planned(folder: Path, configuration: str, **changes: Any) -> RunPlan:
    raw = folder / "raw" / DATASET
    source = write_phantoms(folder / "set", num_cases=10, shape=(24, 28, 24))
    for name, ending in (("imagesTr", "_0000.nii.gz"), ("labelsTr", ".nii.gz")):
        (raw / name).mkdir(parents=True)
        for path in sorted((source / name).glob("*.nii.gz")):
            (raw / name / path.name.replace(".nii.gz", ending)).symlink_to(path)
    labels = json.loads((source / "dataset.json").read_text())["labels"]
    content = {"channel_names": {"0": "MRI"}, "labels": {name: int(value) for value, name in labels.items()}}
    (raw / "dataset.json").write_text(json.dumps({**content, "numTraining": 10, "file_ending": ".nii.gz"}))
    (folder / "ext").mkdir()
    (folder / "ext/nnUNetTrainerTiny.py").write_text(TINY)
    for module in ("timm/layers.py", "timm/models/eva.py"):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(ANY_LAYER)
    names = {"raw": "nnUNet_raw", "pre": "nnUNet_preprocessed", "results": "nnUNet_results", "ext": "nnUNet_extTrainer"}
    env = {
        **os.environ, **{name: str(folder / each) for each, name in names.items()}, "nnUNet_n_proc_DA": "1",
        "nnUNet_def_n_proc": "1", "nnUNet_compile": "f",
        "PYTHONPATH": os.pathsep.join([str(trainer_folder()), *sys.path, str(folder)]),
    }  # fmt: skip
    made = RunPlan(folder, configuration, env)
    planning = ("experiment_planning.plan_and_preprocess_entrypoints", "plan_and_preprocess_entry")
    made.run(*planning, "-d", "1", "-c", configuration, "-np", "1")
    plans = folder / "pre" / DATASET / "nnUNetPlans.json"
    plan = json.loads(plans.read_text())
    architecture = plan["configurations"][configuration]["architecture"]["arch_kwargs"]
    architecture["features_per_stage"] = [4] * len(architecture["features_per_stage"])
    plan["configurations"][configuration] |= {"batch_size": 2, **changes}
    plans.write_text(json.dumps(plan))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
def test_nnunet_trains_and_goes_on(tmp_path: Path, configuration: str) -> None:
    made = planned(tmp_path, configuration)
    words = ("1", configuration, "0", "-tr", "nnUNetTrainerTiny", "-device", "cpu")
    out = made.run("run.run_training", "run_training_entry", *words)
    assert "own data loaders" not in out
    assert "Hasten: fused norms on" in out
    assert "Training done." in out
    [fold] = (tmp_path / "results").rglob("fold_0")
    assert (fold / "checkpoint_final.pth").is_file()
    assert "Training done." in made.run("run.run_training", "run_training_entry", *words, "--c")


@pytest.mark.slow
def test_two_ranks_train_one_network(tmp_path: Path) -> None:
    """Each on batches of its own, with the Dice of both batches together."""
    made = planned(tmp_path, "3d_fullres", batch_dice=True)
    store = f"file://{tmp_path / 'store'}"
    ranks = [made.start(RANK, str(rank), store) for rank in range(2)]
    outputs = [ended(each) for each in ranks]
    assert all("own data loaders" not in each and "Training done." in each for each in outputs)
    batches, weights = ([_line(name, each) for each in outputs] for name in ("batch", "weights"))
    assert batches[0] != batches[1]
    assert weights[0] == weights[1]
    assert weights[0].endswith("True")
    assert list((tmp_path / "results").rglob("fold_0/checkpoint_final.pth"))


def _line(name: str, text: str) -> str:
    return next(line for line in reversed(text.splitlines()) if line.startswith(f"{name} "))
