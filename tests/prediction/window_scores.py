"""All scores of a volume by windows, the reference of what is decided from them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hasten.prediction.canvas import Scores, score_room
from hasten.prediction.infer import Inference, network_scores
from hasten.prediction.windows import slide


def sliding_window(network: nn.Module, volume: Tensor, inference: Inference) -> Tensor:
    """(K, D, H, W) float32 scores on the device: weighted mean of overlapping windows. volume: (C, D, H, W)."""

    def sink(_: int, shape: tuple[int, int, int]) -> Scores:
        return Scores(lambda classes: score_room((classes, *shape), inference.device, torch.float32), torch.float32)

    forward = lambda batch: network_scores(network, batch, inference)  # noqa: E731
    with torch.inference_mode():
        ((_, scores),) = slide(forward, [volume], inference, sink)
    return scores
