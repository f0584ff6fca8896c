"""A loss of the user's: what it is called with, and what is refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from monai.losses import DiceCELoss

from hasten.config.schema import LossConfig
from hasten.nets.losses.custom import check_custom_loss
from hasten.nets.losses.make_loss import build_loss

MONAI = "monai.losses.dice:DiceCELoss"
ARGS = {"to_onehot_y": True, "softmax": True}
CODE = """
import torch
import torch.nn.functional as F


def entropy(scores, labels, power=1.0):
    assert scores.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return F.cross_entropy(scores, labels[:, 0]) ** power


def masks(scores, labels):
    return F.binary_cross_entropy_with_logits(scores, labels)


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, scores, labels):
        return self.weight * entropy(scores, labels)


ready = Weighted(3.0)
number = 3


def raises(scores, labels):
    return labels.undefined


def whole(scores, labels):
    return scores


def text(scores, labels):
    return "0.3"


def infinite(scores, labels):
    return scores.sum() / 0


def constant(scores, labels):
    return torch.tensor(1.0)


def flat(scores, labels):
    return 0 * scores.sum()


def integer(scores, labels):
    return labels.sum()


def wrong_gradient(scores, labels):
    return (scores - scores).sqrt().sum()
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "losses.py").write_text(CODE)
    return tmp_path / "losses.py"


def batch(classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(2, classes, 6, 5, 4, generator=generator, requires_grad=True)
    return scores, torch.randint(0, classes, (2, 1, 6, 5, 4), generator=generator).to(torch.uint8)


def test_a_function_a_class_and_an_object(code: Path) -> None:
    scores, label = batch()
    expected = torch.nn.functional.cross_entropy(scores, label[:, 0].long()).item()
    calls: list[tuple[str, dict[str, Any], float]] = [
        ("entropy", {}, 1.0),
        ("entropy", {"power": 2}, expected),
        ("Weighted", {"weight": 2.0}, 2.0),
        ("ready", {}, 3.0),
    ]
    for name, args, factor in calls:
        config = LossConfig(name=f"{code}:{name}", args=args)
        assert check_custom_loss(config, num_outputs=3, spatial_dims=3)
        with torch.autocast("cpu", torch.bfloat16):
            assert build_loss(config)(scores, label).item() == pytest.approx(expected * factor, rel=1e-6)


def test_a_loss_of_monai_is_what_it_is_there() -> None:
    scores, label = batch()
    config = LossConfig(name=MONAI, args=ARGS)
    check_custom_loss(config, num_outputs=3, spatial_dims=2)
    value = build_loss(config)(scores, label)
    assert value.item() == pytest.approx(DiceCELoss(to_onehot_y=True, softmax=True)(scores, label).item(), rel=1e-6)
    # Of half precision, and of several heads, as a network gives them.
    assert build_loss(config)(scores.bfloat16(), label).item() == pytest.approx(value.item(), rel=1e-2)
    coarse = torch.randn(2, 3, 3, 5, 4)
    both = build_loss(config)([scores, coarse], label)
    alone = build_loss(config)(coarse, label[:, :, 1::2])
    assert both.item() == pytest.approx(value.item() * 2 / 3 + alone.item() / 3, rel=1e-5)


def test_regions_are_masks(code: Path) -> None:
    scores, label = batch(2)
    config = LossConfig(name=f"{code}:masks")
    members = ((1, 2), (2,))
    check_custom_loss(config, num_outputs=2, spatial_dims=3, members=members)
    expected = torch.stack([label[:, 0] >= 1, label[:, 0] == 2], 1).float()
    value = build_loss(config, regions=members)(scores, label)
    assert value.item() == pytest.approx(
        torch.nn.functional.binary_cross_entropy_with_logits(scores, expected).item(), rel=1e-6
    )


REFUSED = {
    "number": r"is a int, .*name a function",
    "absent": r"^loss\.name: .*losses\.py has no name absent; it has",
    "Weighted": r"missing 1 .*'weight'.*\(called with \{\}\)",
    "raises": r"\(2, 3, 8, 8, 8\) .*\(2, 1, 8, 8, 8\) .*labels\.undefined",
    "whole": r"\(2, 3, 8, 8, 8\) torch\.float32; .*one number",
    "text": r"gives str; let it return one number",
    "infinite": r"gives -?inf; it must be finite",
    "constant": r"gives a loss without a finite gradient",
    "flat": r"gives a loss without a finite gradient",
    "integer": r"gives a tensor of \(\) torch\.int64",
    "wrong_gradient": r"gives a loss without a finite gradient",
    "masks": r"raises ValueError: Target size",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(code: Path, name: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]) as caught:
        check_custom_loss(LossConfig(name=f"{code}:{name}"), num_outputs=3, spatial_dims=3)
    assert str(caught.value).startswith("loss.name")


def test_another_source_than_the_runs(code: Path) -> None:
    digest = check_custom_loss(LossConfig(name=f"{code}:entropy"), num_outputs=2, spatial_dims=2)
    code.write_text(CODE + "\n")
    with pytest.raises(ValueError, match=r"changed .*\(loss\.digest=.*; restore .* loss\.digest="):
        build_loss(LossConfig(name=f"{code}:entropy", digest=digest))


def test_ignored_voxels_are_told_to_a_loss_that_asks(code: Path) -> None:
    scores, label = batch()
    label[:, :, :3] = 255
    config = LossConfig(name="torch.nn.modules.loss:CrossEntropyLoss")
    with pytest.raises(ValueError, match=r"with int64 labels|raises"):
        check_custom_loss(config, num_outputs=3, spatial_dims=3, ignore_index=255)
    (code.parent / "ignoring.py").write_text(
        "import torch.nn.functional as F\n\n\n"
        "def entropy(scores, labels, ignore_index=-100):\n"
        "    return F.cross_entropy(scores, labels[:, 0], ignore_index=ignore_index)\n"
    )
    config = LossConfig(name=f"{code.parent / 'ignoring.py'}:entropy")
    check_custom_loss(config, num_outputs=3, spatial_dims=3, ignore_index=255)
    value = build_loss(config, ignore_index=255)(scores, label)
    expected = torch.nn.functional.cross_entropy(scores[:, :, 3:], label[:, 0, 3:].long())
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    with pytest.raises(ValueError, match=r"takes no ignore_index, and the data set has an ignore label"):
        check_custom_loss(LossConfig(name=f"{code}:entropy"), num_outputs=3, spatial_dims=3, ignore_index=255)
    with pytest.raises(ValueError, match=r"masks of regions, which can't say"):
        check_custom_loss(config, num_outputs=1, spatial_dims=3, members=((1,),), ignore_index=255)
