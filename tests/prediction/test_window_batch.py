"""The batch of windows by doubling, with stand-ins for passes on a GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hasten.prediction import window_batch
from hasten.prediction.infer import Inference
from hasten.prediction.window_batch import BatchTrial, best_batch, measured_batch

GIB = 2**30


def how(device: str) -> Inference:
    return Inference(
        patch=(8, 8, 8), divisor=(1, 1, 1), whole_up_to=0, overlap=0.5, batch_size=4, precision="fp32",
        channels_last=False, spatial_dims=3, device=torch.device(device),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fixed", "free", "most", "count", "why"),
    [
        (0.0, 400, 64, 1, "1.00 ms a window, and 1.00 ms with 2"),
        (7.0, 400, 64, 64, "no more are tried"),  # from 128 on nothing is gained, but no more are tried
        (0.4, 400, 64, 4, "1.10 ms a window, and 1.05 ms with 8"),
        (7.0, 32, 64, 8, "16 would take 16 GiB of the 32 GiB"),
        (7.0, 400, 8, 8, "16 run out of memory"),
        (7.0, 1, 64, 1, "2 would take 2 GiB of the 1 GiB"),
    ],
)
def test_a_batch_is_doubled_while_it_gains_and_fits(fixed: float, free: int, most: int, count: int, why: str) -> None:
    def trial(size: int) -> BatchTrial:
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return BatchTrial((fixed + size) / 1e3, size * GIB)

    result, reason = best_batch(trial, free * GIB)
    assert (result, reason[: len(why)]) == (count, why)


def test_another_error_passes() -> None:
    def trial(size: int) -> BatchTrial:
        if size > 1:
            raise RuntimeError("no kernel image")
        return BatchTrial(1.0, 1)

    with pytest.raises(RuntimeError, match="no kernel image"):
        best_batch(trial, GIB)


def test_the_settings_hold_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured_batch(torch.nn.Identity(), 1, how("cpu")) == 4
    monkeypatch.setattr(window_batch, "_trial", lambda *given: BatchTrial((1 + given[-1]) / 1e3, 1))
    monkeypatch.setattr(window_batch, "available_bytes", lambda device: GIB)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert measured_batch(torch.nn.Identity(), 1, dataclasses.replace(how("cpu"), device=torch.device("cuda"))) == 16
