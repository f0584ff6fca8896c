from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import nn

from hasten.config.schema import LossConfig, LossName
from hasten.nets.build import build_loss
from hasten.nets.losses.modules import DiceCELoss, DiceFocalLoss, DiceLoss, FocalTverskyLoss, TverskyCELoss, TverskyLoss

COMMON: Any = {"to_onehot_y": True, "softmax": True}
MADE: dict[str, Any] = {
    "dice_ce": lambda **common: DiceCELoss(**common),
    "dice_focal": lambda **common: DiceFocalLoss(gamma=1.5, **common),
    "dice": lambda **common: DiceLoss(**common),
    "tversky": lambda **common: TverskyLoss(alpha=0.2, beta=0.9, **common),
    "tversky_ce": lambda **common: TverskyCELoss(alpha=0.2, beta=0.9, **common),
    "focal_tversky": lambda **common: FocalTverskyLoss(alpha=0.2, beta=0.9, gamma=1.5, **common),
}


def test_every_name_of_the_schema_is_here() -> None:
    assert set(get_args(LossName)) == set(MADE)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_a_config_is_the_loss_of_its_fields(name: Any, include: bool, batch: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 4, 5, 4, 3, generator=generator)
    label = torch.randint(0, 4, (2, 1, 5, 4, 3), generator=generator).to(torch.uint8)
    config = LossConfig(name=name, include_background=include, batch=batch, gamma=1.5, alpha=0.2, beta=0.9)
    single: nn.Module = MADE[name](include_background=include, batch=batch, **COMMON)
    assert torch.equal(build_loss(config)(scores, label), single(scores, label))
    heads = [scores, scores[..., ::2, ::3]]
    wanted = (2 * single(scores, label) + single(heads[1], label[..., 1::2, 1::3])) / 3
    assert torch.allclose(build_loss(config)(heads, label), wanted)
