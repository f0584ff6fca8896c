"""The loss file of the page docs/how-to/own-loss.md trains, as its reader would write it down."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from hasten.config.load import load_run
from hasten.config.schema import LossConfig
from hasten.nets.losses.build import build_loss
from hasten.phantoms.organs import write_phantoms
from hasten.training.run import train
from tests.docs.reading import DOCS, blocks


def test_the_file_of_the_page_trains(tmp_path: Path) -> None:
    [code] = [block.text for block in blocks(DOCS / "how-to/own-loss.md") if block.language == "python"]
    (tmp_path / "losses.py").write_text(code)
    name = f"{tmp_path / 'losses.py'}:BoundaryWeighted"
    scores, labels = torch.randn(1, 2, 6, 6, 6), torch.zeros(1, 1, 6, 6, 6)
    labels[..., 3:] = 1
    weights = torch.ones(1, 6, 6, 6)
    weights[..., 2:4] = 4
    entropy = F.cross_entropy(scores, labels[:, 0].long(), reduction="none")
    loss = build_loss(LossConfig(name=name, args={"weight": 4}))
    torch.testing.assert_close(loss(scores, labels), (entropy * weights).sum() / weights.sum())

    source = write_phantoms(tmp_path / "set", num_cases=4, shape=(16, 24, 24))
    overrides = [
        f"data.source={source}", f"cache.dir={tmp_path / 'cache'}", f"loss.name={name}", "loss.args={weight: 4}",
        "train.device=cpu", "train.steps=2", "train.validate_every=2", "sample.patch=[16, 16, 16]",
        "network.channels=[4, 8]", "network.strides=[[2, 2, 2]]", "sample.compile=false", "train.compile=false",
        "train.precision=fp32", "train.channels_last=false",
    ]  # fmt: skip
    assert train(load_run(None, overrides), tmp_path / "run")["steps"] == 2
