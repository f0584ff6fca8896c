from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hasten
from hasten.prediction.canvas import ArgmaxSink, Canvas, Scores, Sink, score_room, weight_map, window_starts
from hasten.prediction.scores import highest
from hasten.prediction.windows import Forward, Windows, count_windows, slide
from tests.hot_path import violations

CPU, INDEXED = torch.device("cpu"), torch.device("cpu:0")
"""A device that is not called the host, although it is."""
SHAPES = [(9, 14, 11), (5, 6, 20), (12, 12, 12)]


def make(**given: Any) -> Windows:
    base: dict[str, Any] = {"window": (6, 7, 8), "overlap": (0.5, 0.5, 0.5), "batch_size": 4, "device": CPU}
    return Windows(**{**base, **given})


def net(classes: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Conv3d(1, classes, 3, padding=1)


def volumes_of(*shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(1, *shape, generator=generator).to(dtype) for shape in shapes]


def scores_of(forward: Forward, volumes: list[Tensor], how: Windows) -> list[Tensor]:
    def sink(_: int, shape: tuple[int, int, int]) -> Sink:
        return Scores(lambda classes: score_room((classes, *shape), CPU, torch.float32), how.sums)

    with torch.inference_mode():
        results = dict(slide(forward, volumes, how, sink))
    return [results[number] for number in range(len(volumes))]


def labels_of(forward: Forward, volumes: list[Tensor], how: Windows, decide: Any = highest) -> list[Tensor]:
    with torch.inference_mode():
        results = dict(slide(forward, volumes, how, lambda _, shape: ArgmaxSink(decide, shape, CPU)))
    return [results[number] for number in range(len(volumes))]


def textbook(network: nn.Module, volume: Tensor, how: Windows) -> Tensor:
    """Every window by itself, all sums and weights of the volume held at once. Not for volumes below a window."""
    starts = [
        window_starts(side, window, overlap)
        for side, window, overlap in zip(volume.shape[1:], how.window, how.overlap, strict=True)
    ]
    weight = weight_map(how.window, how.mode, how.sigma, CPU)
    total, norm = 0.0, torch.zeros(volume.shape[1:])
    for d, h, w in product(*starts):
        slot = (slice(d, d + how.window[0]), slice(h, h + how.window[1]), slice(w, w + how.window[2]))
        with torch.no_grad():
            score = network(volume[(None, slice(None), *slot)].float())[0]
        if isinstance(total, float):
            total = torch.zeros(len(score), *volume.shape[1:])
        total[(slice(None), *slot)] += score * weight
        norm[slot] += weight
    assert isinstance(total, Tensor)
    return total / norm


@pytest.mark.parametrize("mode", ["gaussian", "constant"])
@pytest.mark.parametrize("overlap", [(0.0, 0.25, 0.5), (0.6, 0.3, 0.8)])
def test_scores_and_labels_are_the_textbooks(mode: str, overlap: tuple[float, float, float]) -> None:
    network, volumes, how = net(), volumes_of((9, 14, 11), (6, 9, 20), (12, 12, 12)), make(mode=mode, overlap=overlap)
    scores = scores_of(network, volumes, how)
    labels = labels_of(network, volumes, how)
    for volume, score, label in zip(volumes, scores, labels, strict=True):
        expected = textbook(network, volume, how)
        torch.testing.assert_close(score, expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(label, score.argmax(0).to(torch.uint8))


def test_windows_of_several_volumes_share_batches() -> None:
    network, volumes, how = net(), volumes_of(*SHAPES), make(batch_size=5)
    sizes = []

    def forward(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return network(batch)

    together = scores_of(forward, volumes, how)
    total = sum(count_windows(volume.shape[1:], how) for volume in volumes)  # type: ignore[arg-type]
    assert sizes == [5] * (total // 5) + ([total % 5] if total % 5 else [])
    for number, volume in enumerate(volumes):
        (alone,) = scores_of(network, [volume], how)
        torch.testing.assert_close(together[number], alone, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("decide", [highest, lambda sums: sums > 0])
@pytest.mark.parametrize("overlap", [0.25, 0.5])
def test_few_sums_are_held_at_once(overlap: float, decide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    add = Canvas.add

    def watched(self: Canvas, *given: Any) -> None:
        add(self, *given)
        held.append(sum(sums.untyped_storage().nbytes() for sums in self.cells.values()))

    monkeypatch.setattr(Canvas, "add", watched)
    shape, classes = (60, 60, 40), 5
    how = make(window=(20, 20, 20), overlap=(overlap,) * 3, batch_size=1)
    labels_of(lambda batch: batch.expand(-1, classes, -1, -1, -1), volumes_of(shape), how, decide)
    assert held[-1] == 0
    assert max(held) <= 0.26 * 4 * classes * 60 * 60 * 40


def test_scores_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"size \(3, 3, 4\) for windows of \(6, 7, 8\)"):
        labels_of(lambda batch: batch[..., ::2, ::2, ::2].contiguous()[..., :3, :3, :4], volumes_of((9, 9, 9)), make())


def too_much() -> Tensor:
    """What a host without memory does."""
    return torch.empty(2**58)


def oom() -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("fail", [too_much, oom])
def test_the_batch_is_halved_until_it_fits(
    fail: Callable[[], Tensor], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, volumes = net(), volumes_of(*SHAPES)
    sizes: list[int] = []

    def forward(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return network(batch) if len(batch) <= 3 else fail()

    result = scores_of(forward, volumes, make(batch_size=12))
    assert sizes[:3] == [12, 6, 3]
    assert max(sizes[2:]) == 3, "a size that failed is not tried again"
    assert "out of memory with 12 windows at once; going on with 6" in caplog.text
    for one, other in zip(result, scores_of(network, volumes, make()), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("method", ["_put", "_hand_on"])
@pytest.mark.parametrize("make_all", [scores_of, labels_of])
def test_sums_that_do_not_fit_move_to_the_host_and_none_is_counted_twice(
    method: str, make_all: Callable[..., list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, volumes = net(), volumes_of(*SHAPES)
    expected = make_all(network, volumes, make())
    act, calls = getattr(Canvas, method), 0

    def failing(self: Canvas, *given: Any) -> None:
        nonlocal calls
        calls += 1
        if self.device == INDEXED and calls % 5 == 0:
            oom()
        act(self, *given)

    monkeypatch.setattr(Canvas, method, failing)
    actual = make_all(network, volumes, make(sums_device=INDEXED))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


class Normed(nn.Module):
    """Zero padding and an instance norm: what is constant going in is not constant coming out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.Conv3d(4, 3, 3, padding=1))
        self.seen = 0

    def forward(self, batch: Tensor) -> Tensor:
        self.seen += len(batch)
        return self.layers(batch)


def test_constant_windows_go_through_the_network_once_for_each_value() -> None:
    generator = torch.Generator().manual_seed(0)
    volumes = [torch.zeros(2, 24, 30, 40), torch.zeros(2, 5, 30, 9), torch.zeros(2, 20, 20, 20)]
    volumes[0][:, 9:14, 8:16, 8:16] = torch.randn(2, 5, 8, 8, generator=generator)
    volumes[0][1, :, 22:] = 2.5
    volumes[2][0] = 1
    result, seen = [], []
    for reuse in (False, True):
        network, how = Normed().eval(), make(batch_size=3, reuse_constant=reuse)
        result.append(scores_of(network, volumes, how))
        seen.append(network.seen)
    for one, other in zip(*result, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert seen[0] == sum(count_windows(volume.shape[1:], make()) for volume in volumes)  # type: ignore[arg-type]
    assert seen[1] < 0.6 * seen[0]


def test_nothing_in_the_loop_waits_for_the_device() -> None:
    files = ["canvas.py", "infer.py", "scores.py", "windows.py", "../monai/inferer.py"]
    # Where the device has no room: then the host has to take what it gives up.
    full = ("canvas.py", "Canvas.to_host", ".cpu()")
    # Of scores that lie in the host's memory.
    on_host = ("scores.py", "highest", ".numpy()")
    folder = Path(hasten.__file__).parent / "prediction"
    found = {
        (name, function, what)
        for name in files
        for function, _, what in violations((folder / name).read_text(encoding="utf-8"))
    }
    assert found == {full, on_host}
