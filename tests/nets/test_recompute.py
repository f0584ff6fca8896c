from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from monai.networks.nets import DynUNet, SegResNet, UNet
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.host_bytes import HostBytes
from hasten.nets.recompute import recompute, recompute_modules, undo
from hasten.nets.surgery.operate import operate
from tests.nets.examples import network_of

LEAKY = ("leakyrelu", {"negative_slope": 0.1, "inplace": True})
BATCH = ("batch", {"momentum": 0.3})


class Own(nn.Module):
    """A user's net: tuples, a shared module, statistics that are a running mean, activations in place, functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv3d(1, 6, 3, padding=1), nn.InstanceNorm3d(6, track_running_stats=True), nn.ELU(inplace=True)
        )
        self.both = Both()
        self.shared = nn.Sequential(nn.BatchNorm3d(6), nn.PReLU(), nn.Conv3d(6, 6, 3, padding=1), nn.Dropout3d(0.2))
        self.head = nn.Conv3d(6, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        one, other = self.both(self.first(image))
        return self.head(self.shared(functional.relu(self.shared(one) * other)))


class Both(nn.Module):
    """Gives a tuple, and draws without a dropout module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(6, 6, 3, padding=1), nn.BatchNorm3d(6, momentum=None)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        result = functional.leaky_relu(self.norm(self.conv(image)), 0.1, inplace=True)
        return result, functional.dropout(result, 0.3, training=self.training)


def operated(network: nn.Module) -> nn.Module:
    assert operate(network, image_of()).fused > 0
    return network


NETS: dict[str, Callable[[], nn.Module]] = {
    "unet": lambda: UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=2, norm=BATCH, dropout=0.2),
    "unet instance": lambda: UNet(
        3, 1, 2, (4, 8), (2,), num_res_units=1, norm=("instance", {"affine": True, "track_running_stats": True})
    ),
    "dynunet": lambda: DynUNet(
        3, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[4, 8, 8], norm_name=BATCH, act_name=LEAKY, deep_supervision=True,
        deep_supr_num=1, dropout=0.1,
    ),
    "segresnet": lambda: SegResNet(
        3, 4, 1, 2, norm=BATCH, act=LEAKY, dropout_prob=0.2, blocks_down=(1, 2), blocks_up=(1,)
    ),
    "operated unet": lambda: operated(UNet(3, 1, 2, (4, 8, 8), (2, 2), num_res_units=2)),
    "operated plainconvunet": lambda: operated(network_of("plainconvunet", 3)),
    "operated residualencoderunet": lambda: operated(network_of("residualencoderunet", 3)),
    "own": Own,
}  # fmt: skip


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]()


def image_of(side: int = 16) -> Tensor:
    return torch.randn(2, 1, side, side, side, generator=torch.Generator().manual_seed(1))


def train(network: nn.Module, steps: int = 3) -> Iterator[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    """Loss, gradients and state of every step."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(steps):
        torch.manual_seed(step)
        output = network(torch.randn(2, 1, 16, 16, 16))
        loss = output.float().square().mean() + output.mean()
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: value.grad.clone() for name, value in network.named_parameters() if value.grad is not None}
        optimizer.step()
        yield loss.detach(), gradients, {name: value.clone() for name, value in network.state_dict().items()}


@functools.cache
def trained(name: str) -> list[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    """What the plain network does."""
    return list(train(built(name)))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("share", [0.7, 0.0])
@pytest.mark.parametrize("name", NETS)
def test_training_is_that_without_it_bit_for_bit_in_less_memory(name: str, share: float) -> None:
    plain, saving = built(name), built(name)
    random, state = torch.get_rng_state(), copy.deepcopy(saving.state_dict())
    full = recompute(saving, image_of(), 2**60)
    report = recompute(saving, image_of(), max(1, int(share * full.before)))
    assert torch.equal(torch.get_rng_state(), random)
    assert same(dict(saving.state_dict()), dict(state))
    assert (full.modules, full.fits) == ((), True)
    assert report.modules
    assert report.fits == (report.predicted <= report.budget)
    assert report.predicted < report.before == full.before
    for wanted, result in zip(trained(name), train(saving), strict=True):
        assert torch.equal(result[0], wanted[0])
        assert same(result[1], wanted[1])
        assert same(result[2], wanted[2])
    peaks = []
    for network in (plain, saving):
        with HostBytes() as counted:
            network(image_of()).square().mean().backward()
        peaks.append(counted.peak)
    assert peaks[1] < peaks[0]


def test_bf16_is_recomputed_in_bf16() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        plain, saving = built("unet"), built("unet")
        assert recompute(saving, image_of(), 1).modules
        wanted = next(train(plain))
    with torch.autocast("cpu", torch.bfloat16):
        result = next(train(saving))
    assert torch.equal(result[0], wanted[0])
    assert same(result[1], wanted[1])


class Counting(nn.Module):
    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3, padding=1)
        self.note = lambda: calls.append(1)

    def forward(self, image: Tensor) -> Tensor:
        self.note()
        return functional.softplus(self.conv(image)).exp()


def test_only_training_is_computed_twice() -> None:
    calls: list[int] = []
    network = nn.Sequential(Counting(calls), nn.Conv3d(4, 1, 1))
    recompute_modules(network, ["0"])
    network(image_of(8)).sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        network(image_of(8))
    network.eval()(image_of(8)).sum().backward()
    assert len(calls) == 4
    undo(network)
    network.train()(image_of(8)).sum().backward()
    assert len(calls) == 5


def test_names_copies_and_files_are_kept() -> None:
    plain, saving = built("operated unet"), built("operated unet")
    recompute(saving, image_of(), 1)
    assert list(saving.state_dict()) == list(plain.state_dict())
    wanted = next(train(copy.deepcopy(saving)))
    for other in (copy.deepcopy(saving), pickle.loads(pickle.dumps(saving))):
        assert [type(module) for module in other.modules()] == [type(module) for module in saving.modules()]
        assert same(next(train(other))[1], wanted[1])
    undo(saving)
    assert [type(module) for module in saving.modules()] == [type(module) for module in plain.modules()]
    assert all(
        vars(one).keys() == vars(other).keys() for one, other in zip(saving.modules(), plain.modules(), strict=True)
    )


class Around(nn.Module):
    """A block between two convolutions, with a habit of the given kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.before = nn.Conv3d(1, 4, 3, padding=1)
        self.behind = nn.Sequential(nn.Conv3d(4, 4, 3, padding=1), nn.Softplus(), nn.Conv3d(4, 1, 1), nn.Softplus())
        self.within: nn.Module = Unfit(kind)
        if kind == "spectral norm":
            nn.utils.parametrizations.spectral_norm(self.within.get_submodule("0"))
        if kind == "own forward":
            self.within.forward = self.within.forward  # type: ignore[method-assign]

    def forward(self, image: Tensor) -> Tensor:
        result = self.before(image) + 0
        output: Tensor = self.within([result] if self.kind == "list" else result)
        return self.behind(output + result.add_(1) if self.kind == "input changed later" else output)


class Unfit(nn.Sequential):
    def __init__(self, kind: str) -> None:
        super().__init__(nn.Conv3d(4, 4, 3, padding=1), nn.Softplus())
        self.kind, self.steps = kind, 0

    def forward(self, image: Tensor | list[Tensor]) -> Tensor:  # type: ignore[override]
        if isinstance(image, list):
            image = image.pop()
        if self.kind == "changes its input":
            image = functional.leaky_relu(image, 0.1, inplace=True)
        self.steps += self.kind == "counts"
        result: Tensor = super().forward(image + 0)
        return result


@pytest.mark.parametrize(
    "kind", ["spectral norm", "own forward", "changes its input", "input changed later", "list", "counts", "nothing"]
)
def test_what_cannot_be_computed_twice_is_left_out(kind: str) -> None:
    network = Around(kind)
    report = recompute(network, image_of(8), 1)
    assert ("within" in report.modules) == (kind == "nothing")
    network(image_of(8)).sum().backward()


def test_a_small_probe_stands_for_a_large_batch() -> None:
    network, image = built("unet"), image_of()
    full = recompute(network, image, 2**60).before
    report = recompute(network, image[:1], int(0.7 * full), batch_size=2)
    assert report.before == pytest.approx(full, rel=0.01)
    assert report.modules
    assert not recompute(network, image[:1], int(0.7 * full)).modules


def test_a_compiled_network_learns_the_same() -> None:
    plain, saving = built("unet instance"), built("unet instance")
    recompute(saving, image_of(), 1)
    wanted = next(train(plain))
    result = next(train(torch.compile(saving, backend="aot_eager")))  # type: ignore[arg-type]
    assert torch.allclose(result[0], wanted[0], atol=1e-6)
    for name, value in wanted[2].items():
        assert torch.allclose(result[2][f"_orig_mod.{name}"], value, atol=1e-5), name


def test_mistakes_are_told() -> None:
    network = built("unet")
    with pytest.raises(ValueError, match="compiled"):
        recompute(torch.compile(network), image_of(), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="budget_bytes=0"):
        recompute(network, image_of(), 0)
