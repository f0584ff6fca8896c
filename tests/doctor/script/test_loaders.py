"""Loaders that a script makes, as the probe sees them."""

from __future__ import annotations

import sys
from pathlib import Path

from hasten.doctor.script.doctor import judge
from hasten.doctor.script.launch import run_script

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.zeros(3)

def loader(data):
    return DataLoader(data, batch_size=2)

network = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
kept = Slow(6)
for epoch in range(20):
    for batch in (batches := loader(KEPT)):
        network(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for batch in loader(Slow(2)):
            network(batch)
"""


def test_a_loader_that_each_epoch_builds_anew_is_one_loader(tmp_path: Path) -> None:
    for kept in ("kept", "Slow(6)"):
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.replace("KEPT", kept))
        run = run_script([sys.executable, str(script)], steps=40, seconds=60, experiments=False, quiet=True)
        (record,) = run.records
        training, validation = record.listed("loaders")
        assert (training["training"], validation["training"]) == (40, 0)
        assert record.training_loaders == [training]
        assert len(training["passes"]) == 14
        report = judge(run)
        assert report.diagnosis is not None
        assert report.diagnosis.bound == "input"
        assert "no-workers" in [finding.name for finding in report.findings]
