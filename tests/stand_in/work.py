"""What is done on the stand-in device, in a process of its own: `python -m tests.stand_in.work FOLDER`."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

from hasten import predict, train
from hasten.checkpoint.saver import Saver
from hasten.checkpoint.state import restore_state, training_state
from hasten.config.schema import RunConfig
from hasten.feed.ring import Ring
from hasten.phantoms.organs import write_phantoms
from hasten.prediction.export import export_weights
from tests.stand_in import NAME, add_stand_in
from tests.training.runs import assert_equal, assert_same_run, at_step, config_of, metrics, resumed


class Told(logging.Handler):
    """Warnings of Hasten's."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def feed(device: torch.device) -> None:
    """Batches arrive as they were made, in memory that is used again."""
    made = [torch.full((2, 3), float(number)) for number in range(7)]
    seen = [batch["image"].cpu() for batch in Ring(({"image": each} for each in made), device)]
    assert_equal(seen, made)


def state(device: torch.device) -> None:
    """A state that is saved on the device and read back is the same bit for bit."""
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 3), torch.nn.Conv3d(2, 2, 1)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    network(torch.ones(1, 1, 4, 4, 4, device=device)).sum().backward()
    optimizer.step()
    kept: list[dict[str, Any]] = []
    with Saver() as saver:
        saver.save(training_state(network=network, optimizer=optimizer, step=1), kept.append)
    before = {name: value.cpu() for name, value in network.state_dict().items()}
    assert_equal({name: value.cpu() for name, value in kept[0]["network"].items()}, before)
    with torch.no_grad():
        network[0].weight.zero_()
    assert restore_state(kept[0], network=network, optimizer=optimizer) == 1
    assert_equal({name: value.cpu() for name, value in network.state_dict().items()}, before)


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in metrics(out, "train")]


def settings(folder: Path, dims: int, device: str) -> RunConfig:
    shape = ("sample.patch=[1,16,16]", "network.strides=[[1,2,2]]") if dims == 2 else ()
    source = folder / f"set{dims}"
    if not source.exists():
        write_phantoms(source, num_cases=4, shape=(16, 20, 24))
    options = (*shape, "train.steps=6", "train.validate_every=3", "train.checkpoint_every=2", f"train.device={device}")
    return config_of(source, folder / "cache", *options)


def trains(folder: Path, dims: int) -> None:
    """Losses are those of the CPU."""
    train(settings(folder, dims, "cpu"), folder / f"cpu{dims}")
    train(settings(folder, dims, NAME), folder / f"there{dims}")
    wanted, found = (losses(folder / f"{name}{dims}") for name in ("cpu", "there"))
    assert np.isclose(np.mean(wanted), np.mean(found), rtol=1e-2), (wanted, found)  # lines are means of ten steps there


def resumes(folder: Path, dims: int) -> None:
    """A run that was stopped goes on as if it had not been."""
    halves = folder / f"halves{dims}"
    with at_step(3, "interrupt"), suppress(KeyboardInterrupt):
        train(settings(folder, dims, NAME), halves)
    train(resumed(halves), halves, resume=True)
    assert_same_run(halves, folder / f"there{dims}")


def predicts(folder: Path, dims: int) -> None:
    """Label maps are those of the CPU, and weights can be exported."""
    there, image = folder / f"there{dims}", folder / f"set{dims}" / "imagesTr" / "phantom_000.nii.gz"
    labels = [
        np.asarray(nibabel.load(path).dataobj)
        for device in ("cpu", NAME)
        for path in predict(there, image, folder / f"{device}{dims}labels", device=device)
    ]
    assert np.mean(labels[0] == labels[1]) > 0.999
    export_weights(there, folder / f"weights{dims}.safetensors")


def falls_back(folder: Path, told: Told) -> None:
    """What the device lacks is replaced, and each told in one line; half precision is there."""
    source = folder / "set3"
    config = config_of(source, folder / "cache", "train.steps=3", f"train.device={NAME}", "train.precision=bf16",
                       "train.channels_last=true", "cache.home=device")  # fmt: skip
    told.lines.clear()
    train(config, folder / "lacks")
    lines = [line for line in told.lines if NAME in line]
    assert len(lines) == 2, told.lines
    assert "lacks bf16" in lines[0], lines
    assert "channels-last" in lines[0], lines
    assert "stay in host memory" in lines[1], lines
    settings = resumed(folder / "lacks").train
    assert (settings.precision, settings.channels_last) == ("fp32", False)
    half = config_of(source, folder / "cache", "train.steps=3", f"train.device={NAME}", "train.precision=fp16")
    train(half, folder / "half")
    assert all(np.isfinite(losses(folder / "half")))


def main() -> None:
    folder = Path(sys.argv[1])
    device = add_stand_in(folder / "build")
    told = Told()
    logging.getLogger("hasten").addHandler(told)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("hasten.config.check", "hasten.runtime.device"):
            patch.setattr(f"{module}.DEVICE_PATTERN", f"auto|cpu|{NAME}")
        work = [partial(feed, device), partial(state, device), partial(falls_back, folder, told)]
        work[2:2] = [partial(part, folder, dims) for dims in (3, 2) for part in (trains, resumes, predicts)]
        failures = 0
        for part in work:
            try:
                part()
            except Exception:
                failures += 1
                print(f"{part.func.__name__}{part.args[1:]}: {traceback.format_exc()}", file=sys.stderr)
    sys.exit(failures)


if __name__ == "__main__":
    main()
