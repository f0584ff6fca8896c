from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.prediction import infer
from hasten.prediction.infer import Inference, infer_labels
from tests.prediction.window_scores import sliding_window

CPU = torch.device("cpu")


def make(spatial_dims: int = 3, **given: Any) -> Inference:
    base: dict[str, Any] = {
        "window": (4, 4, 4) if spatial_dims == 3 else (1, 4, 4),
        "divisor": (2, 2, 2) if spatial_dims == 3 else (1, 2, 2),
        "whole_up_to": 10**9,
        "overlap": 0.5,
        "batch_size": 3,
        "precision": "fp32",
        "channels_last": False,
        "spatial_dims": spatial_dims,
        "device": CPU,
    }
    return Inference(**{**base, **given})


def conv_net(spatial_dims: int, channels: int, classes: int) -> nn.Module:
    """Sees the border, so that a window's place and a volume's padding show."""
    torch.manual_seed(1)
    layer = nn.Conv3d if spatial_dims == 3 else nn.Conv2d
    return nn.Sequential(layer(channels, 4, 3, padding=1), nn.ReLU(), layer(4, classes, 3, padding=1)).eval()


def volumes_of(*shapes: Sequence[int], channels: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(channels, *shape, generator=generator).to(dtype) for shape in shapes]


SHAPES = [(5, 6, 7), (4, 4, 4), (9, 3, 4), (5, 5, 8), (2, 2, 2), (6, 6, 8), (4, 4, 3)]


class Recorder(nn.Module):
    """Says which batches it was given. Class 1 where the first channel is above 0.5."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, image: Tensor) -> Tensor:
        self.shapes.append(tuple(image.shape))
        score = image[:, :1] - 0.5
        return torch.cat([-score, score], 1)


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_whole_volumes_together_equal_one_at_a_time(batch_size: int) -> None:
    network, volumes = conv_net(3, 2, 3), volumes_of(*SHAPES)
    together = dict(infer_labels(network, volumes, make(batch_size=batch_size)))
    assert sorted(together) == list(range(len(volumes)))
    for position, volume in enumerate(volumes):
        ((_, alone),) = infer_labels(network, [volume], make())
        assert together[position].shape == volume.shape[1:]
        assert together[position].dtype == torch.uint8
        assert torch.equal(together[position], alone)


def test_free_memory_is_not_asked_for_of_every_small_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes longer than a small network."""
    monkeypatch.setattr("hasten.prediction.infer.available_bytes", lambda device: pytest.fail("asked"))
    assert len(dict(infer_labels(conv_net(3, 2, 3), volumes_of(*SHAPES), make()))) == len(SHAPES)


@pytest.mark.parametrize("whole_up_to", [0, 200, 10**9])
def test_each_result_is_that_of_its_position(whole_up_to: int) -> None:
    """Some go whole and some by windows; a network that only looks at the voxel itself says whose result it is."""
    volumes = volumes_of(*SHAPES)
    how = make(whole_up_to=whole_up_to, batch_size=2)
    results = dict(infer_labels(Recorder(), volumes, how))
    for position, volume in enumerate(volumes):
        assert torch.equal(results[position], (volume[0] > 0.5).to(torch.uint8))


def test_whole_volumes_are_padded_to_the_divisor_and_at_least_to_a_patch() -> None:
    network = Recorder()
    how = make(divisor=(2, 4, 8), window=(4, 8, 8), batch_size=1)
    list(infer_labels(network, volumes_of((5, 9, 9), (1, 1, 17), (4, 8, 8)), how))
    assert sorted(shape[2:] for shape in network.shapes) == [(4, 8, 8), (4, 8, 24), (6, 12, 16)]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("flip_axes", [(), (1, 2)])
@pytest.mark.parametrize("whole_up_to", [0, 10**9])
def test_classes_that_overlap_are_held_where_their_scores_are_above_0(
    dims: int, flip_axes: tuple[int, ...], whole_up_to: int
) -> None:
    depth = 1 if dims == 2 else 4
    network, volumes = conv_net(dims, 2, 3), volumes_of((depth, 4, 4), (depth, 4, 12))
    how = make(dims, whole_up_to=whole_up_to, overlapping=True, flip_axes=flip_axes)
    for position, result in infer_labels(network, volumes, how):
        volume = volumes[position]
        assert (result.dtype, result.shape) == (torch.bool, (3, *volume.shape[1:]))
        if position == 0 or not whole_up_to:  # a single window holds all of the first
            scores = sliding_window(network, volume, how)
            sure = scores.abs() > 1e-5
            assert torch.equal(result[sure], scores[sure] > 0)


def test_volumes_that_do_not_fit_in_one_piece_go_by_windows(caplog: pytest.LogCaptureFixture) -> None:
    class Small(Recorder):
        """Fails as a card does for what is larger than a window, and for three windows at once."""

        def forward(self, image: Tensor) -> Tensor:
            if image[0, 0].numel() > 4**3 or len(image) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(image)

    volumes = volumes_of(*SHAPES)
    results = dict(infer_labels(Small(), volumes, make(batch_size=4)))
    assert sorted(results) == list(range(len(volumes)))
    for position, volume in enumerate(volumes):
        assert torch.equal(results[position], (volume[0] > 0.5).to(torch.uint8))
    assert "in one piece; going on with windows of (4, 4, 4)" in caplog.text


@pytest.mark.parametrize(("precision", "switch"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_a_gpu_multiplies_as_the_precision_says(precision: str, switch: str) -> None:
    class Net(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            seen.append(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]
            return image

    seen: list[str] = []
    how = make(precision=precision, device=torch.device("cuda"))
    infer.network_scores(Net(), torch.zeros(1, 2, 4, 4, 4), how)
    assert seen == [switch]
