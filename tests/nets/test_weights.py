from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.config.schema import NetworkConfig
from hasten.nets.build import build_network
from hasten.nets.weights import common_prefixes, fit_weights, last_weight, shared_channels

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
    fit = fit_weights(here, theirs)
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


def test_the_last_weight_has_no_second_name() -> None:
    head = nn.Parameter(torch.zeros(3))
    assert last_weight({"a": torch.zeros(2), "head": head, "again.head": head, "empty": torch.zeros(0)}) == "head"
    assert last_weight({}) == ""


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
