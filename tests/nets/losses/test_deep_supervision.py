from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.losses import DeepSupervisionLoss as Monais
from monai.networks.nets import DynUNet
from torch import Tensor

from hasten.config.schema import LossConfig
from hasten.nets.build import build_loss
from hasten.nets.losses.deep_supervision import DeepSupervisionLoss, nearest
from hasten.nets.losses.modules import DiceCELoss

INDEX = {"to_onehot_y": True, "softmax": True}


def heads(*sizes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, *size, generator=generator) for size in sizes]


def label(*size: int) -> Tensor:
    return torch.randint(0, 3, (2, 1, *size), generator=torch.Generator().manual_seed(2)).to(torch.uint8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=2, max_size=3))
def test_the_nearest_voxel_is_torchs(sides: list[tuple[int, int]]) -> None:
    target = label(*[side for side, _ in sides])
    size = [wanted for _, wanted in sides]
    wanted = torch.nn.functional.interpolate(target.float(), size=size, mode="nearest-exact")
    result = nearest(target, size)
    assert result.dtype == target.dtype
    assert torch.equal(result.float(), wanted)


def test_as_nnunet_each_depth_weighs_half_of_the_finer_one() -> None:
    outputs, target = heads((8, 8), (4, 4), (2, 2)), label(8, 8)
    loss = DiceCELoss(**INDEX)
    each = [
        loss(output, target[..., step // 2 :: step, step // 2 :: step])
        for output, step in zip(outputs, (1, 2, 4), strict=True)
    ]
    result = DeepSupervisionLoss(loss)(outputs, target)
    assert torch.allclose(result, (4 * each[0] + 2 * each[1] + each[2]) / 7)
    assert torch.allclose(result, Monais(loss)(outputs, target.float()) / 1.75)


def test_a_network_with_stacked_heads_and_the_same_in_evaluation() -> None:
    torch.manual_seed(0)
    network = DynUNet(
        3, 1, 3, [3, 3, 3, 3], [1, 2, 2, 2], [2, 2, 2], filters=[4, 4, 4, 4], deep_supervision=True, deep_supr_num=2
    )
    image, target = torch.randn(2, 1, 16, 16, 16), label(16, 16, 16)
    loss = build_loss(LossConfig())
    stacked = network(image)
    assert stacked.shape == (2, 3, 3, 16, 16, 16)
    single = DiceCELoss(include_background=False, batch=True, **INDEX)
    wanted = sum(weight * single(stacked[:, head], target) for head, weight in enumerate([4 / 7, 2 / 7, 1 / 7]))
    value = loss(stacked, target)
    assert torch.allclose(value, torch.as_tensor(wanted))
    value.backward()
    assert all(head.grad is not None for head in (network.deep_supervision_heads[1].conv.conv.weight,))
    output = network.eval()(image)
    assert torch.equal(loss(output, target), single(output, target))


def test_it_compiles_whole() -> None:
    outputs, target = heads((8, 8), (4, 4)), label(8, 8)
    loss = DeepSupervisionLoss(DiceCELoss(**INDEX))
    assert torch.allclose(
        torch.compile(loss, backend="aot_eager", fullgraph=True)(outputs, target), loss(outputs, target)
    )
