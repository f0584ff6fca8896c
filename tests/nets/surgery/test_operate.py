"""`operate` with a probe, on any network: outputs, gradients, steps and checkpoints are those of before."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from monai.networks.nets import BasicUNet, UNet
from torch import Tensor, nn

from hasten.nets.surgery.operate import operate, undo
from tests.nets.examples import NETWORKS, image_of, laid_out, network_of, trained

FOUND = {
    "unet": (9, 9),
    "unet batch": (9, 9),
    "unet group": (9, 0),
    "dynunet": (10, 0),
    "dynunet deep": (7, 0),
    "dynunet batch": (7, 0),
    "segresnet": (15, 0),
    "plainconvunet": (10, 10),
    "plainconvunet batch": (10, 10),
    "residualencoderunet": (7, 11),
    "mednext": (0, 14),
    "basicunet": (18, 18),
    "odd": (3, 2),
}
"""Pairs and biases of each network: the group norms of a few channels cancel none, nor what is added to a skip."""
SOME = ["unet batch", "dynunet deep", "segresnet", "plainconvunet", "mednext", "odd"]
"""One of each kind: running means, several outputs, a norm before its convolution, nnU-Net's blocks, a user's own."""


def close(result: Tensor, wanted: Tensor, share: float = 1e-4) -> bool:
    """To a share of the largest value."""
    return bool((result - wanted).abs().max() <= share * wanted.abs().max())


def operated(name: str, dims: int) -> tuple[nn.Module, nn.Module, Tensor]:
    plain, image = network_of(name, dims), image_of(name, dims)
    other = copy.deepcopy(plain)
    done = operate(other, image)
    assert (done.fused, done.biases) == FOUND[name], done
    return plain, other, image


def outcome(network: nn.Module, image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    output = network(image)
    output.square().mean().backward()
    return output, {name: value.grad for name, value in network.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dims", [2, 3])
def test_outputs_gradients_and_statistics_are_those_before(name: str, dims: int) -> None:
    # In float64, as batch norms of a few values make much of a rounding error.
    pair = [part.double() for part in operated(name, dims)]
    for last in (False, True):
        (plain, image), (other, _) = (laid_out(network, pair[2], last=last) for network in pair[:2])  # type: ignore[arg-type]
        (wanted, theirs), (result, mine) = outcome(plain, image), outcome(other, image)
        assert close(result, wanted, 1e-9)
        largest = max(float(value.abs().max()) for value in theirs.values())
        for key, value in mine.items():
            assert torch.allclose(value, theirs[key], atol=1e-9 * largest), key
        for key in set(theirs) - set(mine):
            assert theirs[key].abs().max() < 1e-9 * largest, f"{key} is not taken away again"
        for network in (plain, other):
            network.eval()
        assert close(other(image), plain(image), 1e-9)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dims", [2, 3])
def test_a_pass_without_values_finds_the_same(name: str, dims: int) -> None:
    networks, image = [network_of(name, dims) for _ in range(2)], image_of(name, dims)
    done = [operate(network, probe) for network, probe in zip(networks, (image, image.to("meta")), strict=True)]
    assert done[0] == done[1]
    assert [type(module) for module in networks[0].modules()] == [type(module) for module in networks[1].modules()]
    assert not any(value.is_meta for value in networks[1].parameters())


@pytest.mark.parametrize(
    "name",
    ["unet", "unet batch", "unet group", "dynunet deep", "segresnet", "plainconvunet", "residualencoderunet", "odd"],
)
def test_a_few_steps_and_the_evaluation_after_them_are_the_same(name: str) -> None:
    # In float64, as the steps enlarge a rounding error of float32, how far depending on the processor.
    plain, other, image = (part.double() for part in operated(name, 2))
    for network in (plain, other):
        network.train()
    assert trained(other, image, steps=5) == pytest.approx(trained(plain, image, steps=5), rel=1e-3)
    for network in (plain, other):
        network.eval()
    wanted = plain(image)
    assert close(other(image), wanted, 2e-3)


@pytest.mark.parametrize("name", SOME)
def test_checkpoints_load_both_ways(name: str) -> None:
    plain, other, image = operated(name, 2)
    for network in (plain, other):
        with torch.no_grad():
            for value in [*(value for value in network.parameters() if value.requires_grad), *network.buffers()]:
                if value.is_floating_point():
                    value.add_(torch.rand_like(value), alpha=0.1)
    fresh, fresh_operated = network_of(name, 2), copy.deepcopy(other)
    assert list(fresh.state_dict()) == list(other.state_dict())
    for source, target in ((other, fresh), (plain, fresh_operated)):
        state = source.state_dict()
        before = {key: value.clone() for key, value in state.items()}
        target.load_state_dict(state)
        assert all(torch.equal(value, before[key]) for key, value in state.items())
        pickle.loads(pickle.dumps(target)).load_state_dict(state)
        for training in (True, False):
            wanted = copy.deepcopy(source).train(training)(image)
            assert close(copy.deepcopy(target).train(training)(image), wanted)


def test_the_network_and_the_random_state_are_not_touched_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    network, image = network_of("unet batch", 2).eval(), image_of("unet batch", 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a GPU is seeded"))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    drawn = torch.get_rng_state()
    operate(network, image, biases=False)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not network.training
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


@pytest.mark.parametrize("name", SOME)
def test_a_second_time_changes_nothing_and_undo_takes_it_back(name: str) -> None:
    plain, other, image = operated(name, 2)
    kinds = [type(module) for module in other.modules()]
    done = operate(other, image)
    assert (done.biases, done.norms) == (0, ())
    assert [type(module) for module in other.modules()] == kinds
    undo(other)
    assert [type(module) for module in other.modules()] == [type(module) for module in plain.modules()]
    trained = ([parameter.requires_grad for parameter in network.parameters()] for network in (other, plain))
    assert next(trained) == next(trained)
    assert close(other(image), plain(image))


def test_a_metatensor_stays_one() -> None:
    from monai.data import MetaTensor

    plain, other, image = operated("unet", 2)
    given = MetaTensor(image, meta={"name": "case"})
    result = other(given)
    assert isinstance(result, MetaTensor)
    assert result.meta["name"] == "case"
    assert torch.allclose(result.as_tensor(), plain(image), atol=1e-5)


def test_a_network_that_cannot_be_copied_or_run_is_refused() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3))
    network.kept = (network[0].weight * 2,)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="before its first training step"):
        operate(network, torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match="on the network's device"):
        operate(network_of("unet", 2).to("meta"), image_of("unet", 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "segresnet"])
def test_compiled_it_is_what_it_was(name: str) -> None:
    plain, other, image = operated(name, 2)
    (wanted, theirs), (result, mine) = outcome(plain, image), outcome(torch.compile(other, fullgraph=True), image)  # type: ignore[arg-type]
    assert close(result, wanted)
    for key, value in mine.items():
        assert torch.allclose(value, theirs[key.removeprefix("_orig_mod.")], atol=1e-4), key


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("units", [0, 2])
def test_monais_blocks_are_known_without_a_probe(dims: int, units: int) -> None:
    torch.manual_seed(0)
    plain = UNet(dims, 1, 3, (4, 8, 16), (2, 2), num_res_units=units)
    known, seen = copy.deepcopy(plain), copy.deepcopy(plain)
    done, image = operate(known), torch.randn(2, 1, *[16] * dims)
    traced = operate(seen, image)
    assert (set(done.pairs), set(done.unbiased)) == (set(traced.pairs), set(traced.unbiased))
    assert close(known(image), plain(image))


@pytest.mark.parametrize("norm", ["batch", ("instance", {"affine": True}), ("group", {"num_groups": 1})])
def test_other_blocks_are_left_as_they_are_without_one(norm: Any) -> None:
    for network in (UNet(3, 1, 2, (4, 8), (2,), norm=norm), BasicUNet(3, 1, 2, (4, 4, 8, 8, 8, 4))):
        before = repr(network)
        done = operate(network)
        assert (done.fused, done.biases, repr(network)) == (0, 0, before)
