from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hasten.config.schema import NetworkConfig
from hasten.nets.build import build_network
from hasten.nets.weights import common_prefixes, fit_weights, last_weight, resized_grid, shared_channels

NAMES = ("unet", "dynunet", "segresnet", "plainconvunet", "residualencoderunet")
PREFIXES = ("", "module.", "model.", "network.", "_orig_mod.", "module.net._orig_mod.")


def network(name: str = "unet", *, image: int = 1, classes: int = 3, dims: int = 3, **settings: Any) -> nn.Module:
    stride = (2, 2, 2) if dims == 3 else (1, 2, 2)
    settings = {"channels": (8, 16, 32), "strides": (stride, stride), **settings}
    config = NetworkConfig(name=name, **settings)  # type: ignore[arg-type]
    return build_network(config, num_channels=image, num_classes=classes, spatial_dims=dims)


def copied(state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """As from a file: no two names share memory."""
    return {prefix + name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dims", [2, 3])
@given(saved=st.sampled_from(PREFIXES), ours=st.sampled_from(PREFIXES))
def test_any_prefix_is_found(name: str, dims: int, saved: str, ours: str) -> None:
    state = NETWORKS[name, dims]
    here = {ours + key: value for key, value in state.items()}
    theirs = {saved + key: value for key, value in FILES[name, dims].items()}
    fit = fit_weights(here, theirs, spatial_dims=dims)
    assert set(fit.taken) == set(here)
    assert not {*fit.adapted, *fit.left, *fit.unused}
    for key in here:
        assert fit.values[key] is theirs[saved + key.removeprefix(ours)]


NETWORKS = {(name, dims): network(name, dims=dims).state_dict() for name in NAMES for dims in (2, 3)}
FILES = {key: copied(state) for key, state in NETWORKS.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("norm", "image", "classes"), [("instance", 1, 5), ("batch", 2, 5), ("batch", 3, 2)])
def test_other_classes_and_channels(name: str, norm: str, image: int, classes: int) -> None:
    here = network(name, image=2, norm=norm).state_dict()
    saved = copied(network(name, image=image, classes=classes, norm=norm).state_dict(), "module.")
    fit = fit_weights(here, saved)
    assert fit.prefixes == ("module.", "")
    different = {key for key in here if here[key].shape != saved[f"module.{key}"].shape}
    assert set(fit.adapted) | set(fit.left) == different
    assert fit.left
    assert all(why.startswith("classes differ: ") for why in fit.left.values())
    assert bool(fit.adapted) == (image != 2)
    assert all(here[key].shape[1] == 2 and value.shape == here[key].shape for key, value in fit.values.items()
               if key in fit.adapted)  # fmt: skip
    assert not fit.unused
    assert set(fit.values) | set(fit.left) == set(here)


@given(given_channels=st.integers(1, 5), channels=st.integers(1, 7), dims=st.integers(1, 3))
def test_equal_channels_give_what_they_gave(given_channels: int, channels: int, dims: int) -> None:
    filters = torch.randn(3, given_channels, *(2,) * dims, dtype=torch.float64)
    result = shared_channels(filters, channels)
    assert result.shape == (3, channels, *(2,) * dims)
    torch.testing.assert_close(result.sum(1), filters.sum(1))
    if channels == given_channels:
        assert torch.equal(result, filters)
    if channels % given_channels == 0:
        torch.testing.assert_close(result[:, :given_channels] * (channels // given_channels), filters)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("token", [0, 1])
@given(old=st.integers(1, 4), new=st.integers(2, 5))
def test_positions_are_interpolated(dims: int, token: int, old: int, new: int) -> None:
    saved = torch.randn(1, token + old**dims, 3)
    result = resized_grid(saved, (1, token + new**dims, 3), dims)
    assert result is not None
    assert result.shape == (1, token + new**dims, 3)
    if token and (new**dims + 1, old**dims + 1) != (1, 1) and not _ambiguous(old, new, dims):
        assert torch.equal(result[:, 0], saved[:, 0])
    if old == new:
        torch.testing.assert_close(result, saved)
    flat = torch.ones(1, old**dims, 3)
    torch.testing.assert_close(resized_grid(flat, (1, new**dims, 3), dims), torch.ones(1, new**dims, 3))


def _ambiguous(old: int, new: int, dims: int) -> bool:
    """Whether the grids with their token are grids without one, too."""
    return all(round((side**dims + 1) ** (1 / dims)) ** dims == side**dims + 1 for side in (old, new))


def test_positions_by_hand_and_no_grid() -> None:
    saved = torch.arange(4.0).view(1, 4, 1)
    actual = resized_grid(saved, (1, 16, 1), 2)
    expected = functional.interpolate(saved.view(1, 1, 2, 2), size=(4, 4), mode="bilinear")
    assert actual is not None
    assert torch.equal(actual.view(4, 4), expected[0, 0])
    assert resized_grid(saved, (1, 15, 1), 2) is None
    assert resized_grid(saved, (1, 16, 2), 2) is None
    here = {"vit.pos_embed": torch.zeros(1, 16, 1), "vit.line.weight": torch.zeros(9, 9)}
    fit = fit_weights(here, {"pos_embed": saved, "line.weight": torch.ones(9, 9)}, spatial_dims=2)
    assert fit.prefixes == ("", "vit.")
    assert fit.adapted == {"vit.pos_embed": "[1, 4, 1] in the file, [1, 16, 1] here"}


@pytest.mark.parametrize(("one", "other"), [("unet", "segresnet"), ("segresnet", "dynunet"), ("dynunet", "unet")])
def test_another_network_does_not_fit(one: str, other: str) -> None:
    with pytest.raises(ValueError, match=r"fits? this network: .*has \S+, .* more; .*has \S+, ") as error:
        fit_weights(network(one).state_dict(), network(other, dims=2).state_dict())
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="nothing of it fits"):
        fit_weights({"a.weight": torch.zeros(2, 3)}, {"a.weight": torch.zeros(4, 3)})


def test_an_encoder_alone_fits() -> None:
    here = network().state_dict()
    saved = {f"encoder.{name}": value.clone() for name, value in here.items() if name.startswith("model.0.")}
    saved |= {f"encoder.{name}": value.clone() for name, value in here.items() if ".submodule.0." in name}
    fit = fit_weights(here, {**saved, "projection.weight": torch.zeros(7, 9)})
    assert len(fit.taken) == len(saved)
    assert fit.unused == ("projection.weight",)
    assert all(why == "not in the file" for why in fit.left.values())


def test_other_widths_are_left() -> None:
    here = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 2, 1)).state_dict()
    saved = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 3), nn.Conv2d(5, 2, 1)).state_dict()
    fit = fit_weights(here, saved, spatial_dims=2)
    assert set(fit.taken) == {"0.weight", "0.bias", "2.bias"}
    assert all("shape: " in why for why in fit.left.values())
    assert set(fit.left) == {"1.weight", "1.bias", "2.weight"}


def test_the_last_weight_has_no_second_name() -> None:
    head = nn.Parameter(torch.zeros(3))
    assert last_weight({"a": torch.zeros(2), "head": head, "again.head": head, "empty": torch.zeros(0)}) == "head"
    assert last_weight({}) == ""


def test_the_shortest_prefix_counts() -> None:
    here = {"x.a.weight": torch.zeros(2, 3), "x.a.bias": torch.zeros(2)}
    assert common_prefixes(here, {"x.a.weight": torch.zeros(2, 3), "x.a.bias": torch.zeros(2)}) == ("", "")
    assert common_prefixes(here, {"y.a.weight": torch.zeros(2, 3), "y.a.bias": torch.zeros(2)}) == ("y.", "x.")
    assert common_prefixes(here, {}) == ("", "")


_PARTS = st.lists(st.sampled_from(["a", "b", "module", "weight"]), min_size=1, max_size=4).map(".".join)
_STATES = st.dictionaries(_PARTS, st.integers(1, 2).map(torch.zeros), min_size=1, max_size=6)


def score(here: dict[str, Tensor], saved: dict[str, Tensor], pair: tuple[str, str]) -> tuple[int, int, int]:
    """Tensors that are the same under a pair of prefixes, names that are, and how short the prefixes are."""
    theirs, ours = pair
    pairs = [
        (value, here[ours + name.removeprefix(theirs)])
        for name, value in saved.items()
        if name.startswith(theirs) and ours + name.removeprefix(theirs) in here
    ]
    return sum(one.shape == other.shape for one, other in pairs), len(pairs), -len(theirs) - len(ours)


@given(here=_STATES, saved=_STATES)
def test_no_other_pair_of_prefixes_is_better(here: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    starts = []
    for side in (saved, here):
        parts = [name.split(".") for name in side]
        starts.append(["", *(".".join(each[:count]) + "." for each in parts for count in range(1, len(each)))])
    best = max(score(here, saved, (theirs, ours)) for theirs in starts[0] for ours in starts[1])
    result = score(here, saved, common_prefixes(here, saved))
    assert result == best if best[1] else result[1] == 0
