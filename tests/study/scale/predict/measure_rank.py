"""A rank of `test_measure.py`."""

from __future__ import annotations

from dataclasses import asdict

import torch

from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.world import detect_world
from hasten.study.scale.predict.measure import measure_all_reduce, measure_link
from tests.distribute.ranks import tell

if __name__ == "__main__":
    device = torch.device("cpu")
    with process_group(detect_world(), DistributeConfig(timeout_s=60), device):
        points = measure_all_reduce(device, seconds=1, sizes=(1024, 4096, 65536))
        # Nothing is left of the time after the first sizes, whatever the machine's speed.
        hurried = measure_all_reduce(device, seconds=0.0)
        tell({"points": points, "hurried": hurried, "link": asdict(measure_link(device, name="lo", seconds=1))})
