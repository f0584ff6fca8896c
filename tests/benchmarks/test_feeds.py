from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.peers import feeds
from benchmarks.tasks import bench_task, rows_of_all


@pytest.mark.parametrize("make", [feeds.monai_cached, feeds.monai_regular, feeds.torchio_queue])
def test_peer_feeds(make: Callable[..., feeds.Feed], boxes: Path) -> None:
    if make is feeds.torchio_queue:
        pytest.importorskip("torchio")
    torch.manual_seed(0)
    task = bench_task(boxes)
    rows, num_classes = rows_of_all(task), len(task.labels)
    patch = (16, 24, 32)  # deeper than nothing, wider than the volumes: they are padded
    feed = make(rows, patch, batch=4, samples=2, workers=1)
    for _ in range(2):
        batches = list(feed(3))  # 6 cases from 4: drawn with replacement
        assert len(batches) == 3
        for image, label in batches:
            assert image.shape == label.shape == (4, 1, 32, 24, 16)
            assert torch.isfinite(image).all()
            assert set(label.unique().tolist()) <= set(range(num_classes))
    assert any(float(label.max()) > 0 for _, label in batches)
