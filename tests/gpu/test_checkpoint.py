"""Saving beside the training on a card: the copy is of its step, and the host waits for nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from hasten.checkpoint.file import Checkpoints, read_checkpoint, write_checkpoint
from hasten.checkpoint.saver import Saver
from hasten.checkpoint.state import restore_state, training_state
from tests.gpu.graphs import no_sync
from tests.training.runs import assert_equal


def test_a_copy_is_of_its_step_and_nothing_waits(tmp_path: Path) -> None:
    weights = torch.zeros(2, 8, 64, 64, 64, device="cuda").to(memory_format=torch.channels_last_3d)
    content = {"weights": weights, "again": weights, "part": weights[:, :2], "host": torch.ones(3)}
    saver = Saver()
    saver.save({"step": 0, **content}, lambda _: None)  # makes the pinned memory
    saver.wait()
    torch.cuda.synchronize()
    folder = Checkpoints(tmp_path)
    for step in range(1, 4):
        with no_sync():
            for _ in range(50):
                weights.add_(0.02)  # long enough for the copy to be wrong if it did not wait
            weights.fill_(step)
            saver.save({"step": step, **content}, folder.write)
            weights.fill_(-1)
    saver.close()
    for path in (folder.path,):
        state = read_checkpoint(path)
        assert (state["weights"] == state["step"]).all()
        assert (state["part"] == state["step"]).all()
        assert state["weights"].data_ptr() == state["again"].data_ptr()
        assert state["weights"].stride() == weights.stride()


def test_a_state_is_taken_up_on_the_card(tmp_path: Path) -> None:
    network, optimizer, scaler = trained()
    with Saver() as saver:
        state = training_state(network=network, optimizer=optimizer, scaler=scaler, step=3)
        saver.save(state, partial(write_checkpoint, tmp_path / "x.pt"))
    drawn = torch.rand(5, device="cuda")
    other, again, scales = trained(steps=1)
    step = restore_state(read_checkpoint(tmp_path / "x.pt"), network=other, optimizer=again, scaler=scales)
    assert step == 3
    assert torch.equal(torch.rand(5, device="cuda"), drawn)
    assert_equal(dict(other.state_dict()), dict(network.state_dict()))
    assert_equal(again.state_dict(), optimizer.state_dict())
    assert_equal(scales.state_dict(), scaler.state_dict())


def trained(steps: int = 3) -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    network = nn.Sequential(nn.Conv3d(1, 8, 3), nn.Dropout(0.1), nn.BatchNorm3d(8), nn.Conv3d(8, 2, 1)).cuda()
    network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)
    for _ in range(steps):
        with torch.autocast("cuda", torch.float16):
            loss = network(torch.randn(2, 1, 8, 8, 8, device="cuda")).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return network, optimizer, scaler
