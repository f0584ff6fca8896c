"""Which variants a run compares."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.config.schema import TrainConfig
from hasten.runtime.variant import candidates

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["fp32", "bf16 channels-last fused"]),
        ({"channels_last": True}, ["fp32 channels-last", "bf16 channels-last fused"]),
        ({"channels_last": False}, ["fp32", "bf16"]),
        ({"fused_kernels": False}, ["fp32", "bf16 channels-last"]),
        ({"precision": "fp16"}, ["fp16", "fp16 channels-last fused"]),
        ({"precision": "bf16", "channels_last": True, "fused_kernels": False}, ["bf16 channels-last"]),
    ],
    ids=str,
)
def test_a_gpu_checks_bf16_with_hastens_kernels_against_float32(
    given: dict[str, Any], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert [str(variant) for variant in candidates(CUDA, TrainConfig(**given))] == names
