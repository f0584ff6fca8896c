"""Sliding windows on the card: MONAI's result, no wait for a value, less memory, and what happens without room."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.monai.inferer import SlidingWindowInferer
from hasten.prediction.infer import Inference, infer_labels
from tests.gpu.graphs import no_sync

SETTINGS: dict[str, Any] = {"roi_size": (32, 32, 32), "sw_batch_size": 4, "overlap": 0.5, "mode": "gaussian"}


def net(classes: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, classes, 3, padding=1)).cuda().eval()


def image(*shape: int, device: str = "cuda") -> Tensor:
    return torch.randn(2, 1, *shape, generator=torch.Generator().manual_seed(1)).to(device)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("given", [{}, {"device": "cpu"}, {"sw_device": "cuda", "device": "cpu"}])
@pytest.mark.parametrize("shape", [(70, 40, 50), (20, 60, 33)])
def test_scores_are_monais(given: dict[str, Any], shape: tuple[int, int, int]) -> None:
    from monai.inferers import SlidingWindowInferer as Theirs

    network, inputs = net(), image(*shape)
    with torch.no_grad():
        expected = Theirs(**SETTINGS, **given)(inputs, network)
        actual = SlidingWindowInferer(**SETTINGS, **given)(inputs, network)
        labels = SlidingWindowInferer(**SETTINGS, **given).labels(inputs, network)
    assert actual.device == expected.device == labels.device
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert (labels[:, 0] != expected.argmax(1)).float().mean() < 1e-4


def test_the_loop_waits_for_no_value() -> None:
    network, inputs = net(), image(70, 40, 50)
    inferer = SlidingWindowInferer(**SETTINGS, flip_axes=(0,))
    inferer.labels(inputs, network)
    with no_sync():
        inferer.labels(inputs, network)
        inferer(inputs, network)


def test_labels_take_a_third_of_the_memory() -> None:
    from monai.inferers import SlidingWindowInferer as Theirs

    network, inputs = net(14), image(192, 128, 128)[:1]
    peaks = []
    for run in (
        lambda: Theirs(**SETTINGS)(inputs, network).argmax(1),
        lambda: SlidingWindowInferer(**SETTINGS).labels(inputs, network),
    ):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            run()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0] / 3


def how(**given: Any) -> Inference:
    base: dict[str, Any] = {
        "window": (32, 32, 32), "divisor": (1, 1, 1), "whole_up_to": 0, "overlap": 0.5, "batch_size": 4,
        "precision": "fp32", "channels_last": True, "spatial_dims": 3, "device": torch.device("cuda"),
    }  # fmt: skip
    return Inference(**{**base, **given})


@pytest.mark.parametrize("given", [{"sums_device": torch.device("cpu")}, {"precision": "fp16"}])
def test_other_sums_and_precisions_give_nearly_the_same_labels(given: dict[str, Any]) -> None:
    network, volumes = net(), [image(70, 40, 50)[0], image(33, 50, 64)[1].cpu()]
    plain = dict(infer_labels(network, volumes, how()))
    for position, labels in infer_labels(network, volumes, how(**given)):
        assert labels.is_cuda
        assert (labels != plain[position]).float().mean() < 5e-3


def test_a_batch_that_the_card_has_no_room_for_is_halved(caplog: pytest.LogCaptureFixture) -> None:
    class Hungry(nn.Module):
        """Wants 4 GiB a window, so that a card limited to 10 takes two."""

        def forward(self, windows: Tensor) -> Tensor:
            torch.empty(len(windows), 2**30, device="cuda")
            return torch.cat([windows, -windows], 1)

    total = torch.cuda.get_device_properties(0).total_memory
    if total < 12 * 2**30:
        pytest.skip("needs a card of 12 GiB")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(10 * 2**30 / total)
    try:
        volume = image(64, 32, 32)[0]
        ((_, labels),) = infer_labels(Hungry(), [volume], how(batch_size=8))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert "going on with" in caplog.text
    assert torch.equal(labels, (volume[0] < 0).to(torch.uint8))
