from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.checkpoint.saver import Saver
from tests.training.runs import assert_equal


class Disk:
    """Holds every write until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written: list[dict[str, Any]] = []
        self.under_way = self.most = 0
        self.threads: set[threading.Thread] = set()

    def write(self, content: dict[str, Any]) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.threads.add(threading.current_thread())
        assert self.gate.wait(60)
        self.written.append(content)
        self.under_way -= 1


def test_what_is_written_is_what_was_there_when_save_was_called() -> None:
    disk, saver = Disk(), Saver()
    weights = torch.zeros(1000)
    content = {"step": 1, "list": [weights, (weights[:3],)], "names": ["a"]}
    saver.save(content, disk.write)
    weights.fill_(7.0)  # the next step, while the first is still being written
    content["step"] = 2
    content["list"].append("more")  # type: ignore[attr-defined]
    disk.gate.set()
    saver.close()
    [written] = disk.written
    assert written["step"] == 1
    assert len(written["list"]) == 2
    assert not written["list"][0].any()
    assert not written["list"][1][0].any()


def test_one_is_written_at_a_time_and_none_is_left_out() -> None:
    disk, saver = Disk(), Saver()
    saver.save({"step": 0}, disk.write)
    saver.save({"step": 1}, disk.write)  # waits for the disk, and its caller does not
    assert disk.written == []
    threading.Timer(0.05, disk.gate.set).start()
    for step in range(2, 6):
        saver.save({"step": step}, disk.write)
    saver.close()
    assert [content["step"] for content in disk.written] == list(range(6))
    assert disk.most == 1
    assert threading.main_thread() not in disk.threads
    # A process that ends waits for such a thread; a daemon would be cut off.
    assert not any(thread.daemon for thread in disk.threads)


@pytest.mark.parametrize("later", ["wait", "save"])
def test_a_save_that_waits_behind_a_failed_one_is_not_written(later: str) -> None:
    disk, saver = Disk(), Saver()

    def fail_late(content: dict[str, Any]) -> None:
        assert disk.gate.wait(60)
        fail(content)

    saver.save({"step": 1}, fail_late)
    saver.save({"step": 2}, disk.write)
    disk.gate.set()
    with pytest.raises(OSError, match="No space"):
        saver.wait() if later == "wait" else saver.save({"step": 3}, disk.write)
    assert disk.written == []
    saver.save({"step": 4}, disk.write)
    saver.close()
    assert [content["step"] for content in disk.written] == [4]


def test_a_failed_save_does_not_replace_the_error_of_its_block(caplog: pytest.LogCaptureFixture) -> None:
    saver = Saver()
    saver.save({}, fail)
    with pytest.raises(ZeroDivisionError), saver:
        raise ZeroDivisionError
    assert "could not be written: No space left" in caplog.text
    saver.save({}, fail)
    with pytest.raises(OSError, match="No space"), saver:
        pass


def fail(content: dict[str, Any]) -> None:
    raise OSError("No space left on device")


def test_a_copy_is_saved_as_the_tensors_themselves_would_be(tmp_path: Path) -> None:
    """Memory formats, containers, the versions in a state dict, and memory that two names share."""
    network = nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4)).to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    network.add_module("again", network[0])
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    network[:2](torch.randn(2, 2, 4, 4, 4)).sum().backward()
    optimizer.step()
    content = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "nothing": None,
        "ordered": OrderedDict(a=torch.zeros(0), b=(1, [torch.ones(2, dtype=torch.bfloat16)])),
        "whole": torch.arange(3),
        "square": (square := torch.arange(4.0).view(2, 2)),
        "turned": square.T,
    }
    write_checkpoint(tmp_path / "one.pt", content)
    with Saver() as saver:
        saver.save(content, partial(write_checkpoint, tmp_path / "other.pt"))
    one, other = (read_checkpoint(tmp_path / f"{name}.pt") for name in ("one", "other"))
    assert_equal(one, other)
    assert other["network"]._metadata == network.state_dict()._metadata  # type: ignore[attr-defined]
    shared = other["network"]
    assert shared["again.weight"].data_ptr() == shared["0.weight"].data_ptr()
