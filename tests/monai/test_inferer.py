from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import MetaTensor
from monai.inferers import SlidingWindowInferer as Theirs
from torch import Tensor, nn

from hasten.monai.inferer import SlidingWindowInferer

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def net(dims: int, classes: int, channels: int = 2) -> nn.Module:
    """Sees the border, so that a window's place and a volume's padding show."""
    torch.manual_seed(1)
    layer = CONVOLUTIONS[dims]
    return nn.Sequential(layer(channels, 4, 3, padding=1), nn.ReLU(), layer(4, classes, 3, padding=1)).eval()


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def both(inputs: Tensor, network: Callable[..., Any], *args: Any, **given: Any) -> tuple[Any, Any]:
    with torch.no_grad():
        return SlidingWindowInferer(**given)(inputs, network, *args), Theirs(**given)(inputs, network, *args)


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[tuple[int, ...], int, dict[str, Any]]:
    dims = draw(st.integers(1, 3))
    side, window = st.integers(1, 11), st.integers(2, 6)
    shape = (draw(st.integers(1, 3)), 2, *(draw(side) for _ in range(dims)))
    overlaps = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6, 0.8])
    given: dict[str, Any] = {
        "roi_size": draw(st.one_of(window, st.tuples(*[st.one_of(window, st.just(-1))] * dims))),
        "sw_batch_size": draw(st.integers(1, 5)),
        "overlap": draw(st.one_of(overlaps, st.tuples(*[overlaps] * dims))),
        "mode": draw(st.sampled_from(["constant", "gaussian"])),
        "sigma_scale": draw(st.sampled_from([0.125, 0.3])),
        "padding_mode": draw(st.sampled_from(["constant", "replicate"])),
    }
    if given["padding_mode"] == "constant":
        given["cval"] = draw(st.sampled_from([0.0, -2.5]))
    return shape, draw(st.integers(1, 4)), given


@given(settings_of())
@settings(deadline=None, max_examples=50)
def test_scores_are_monais_and_labels_their_argmax(drawn: Any) -> None:
    shape, classes, given = drawn
    network, inputs = net(len(shape) - 2, classes), images(*shape)
    actual, expected = both(inputs, network, **given)
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    labels = SlidingWindowInferer(**given).labels(inputs, network)
    assert labels.dtype == torch.uint8
    assert torch.equal(labels, actual.argmax(1, keepdim=True).to(torch.uint8))


def test_large_windows_go_through_the_network_in_pairs() -> None:
    """torch takes slower convolutions for one image: 1.4 times the processor time of a UNet with strides."""
    sizes: list[int] = []
    inferer = SlidingWindowInferer((128, 128, 64), 4, overlap=0)
    inferer(torch.zeros(1, 1, 128, 128, 192), lambda windows: sizes.append(len(windows)) or windows)
    assert sizes == [2, 1]


@pytest.mark.parametrize("padding_mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding_modes(padding_mode: str, dims: int) -> None:
    given = {"roi_size": (8, 6, 7)[:dims], "padding_mode": padding_mode, "mode": "gaussian"}
    actual, expected = both(images(2, 2, *(5, 9, 4)[:dims]), net(dims, 3), **given)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-6), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
def test_the_result_has_the_inputs_type(dtype: torch.dtype, close: float) -> None:
    network = net(3, 3).to(dtype)
    actual, expected = both(images(1, 2, 9, 8, 7, dtype=dtype), network, roi_size=5, overlap=0.5, mode="gaussian")
    assert actual.dtype == expected.dtype == dtype
    torch.testing.assert_close(actual, expected, atol=close, rtol=close)


def test_meta_data_are_monais() -> None:
    affine = torch.diag(torch.tensor([1.0, 2.0, 3.0, 1.0], dtype=torch.float64))
    inputs = MetaTensor(images(1, 2, 9, 8, 7), affine=affine, meta={"filename_or_obj": "a.nii"})
    network = net(3, 3)
    actual, expected = both(inputs, network, roi_size=5)
    assert type(actual) is type(expected) is MetaTensor
    torch.testing.assert_close(actual.as_tensor(), expected.as_tensor())
    labels = SlidingWindowInferer(roi_size=5).labels(inputs, network)
    for one in (actual, labels):
        assert torch.equal(one.affine, expected.affine)
        assert one.meta["filename_or_obj"] == expected.meta["filename_or_obj"]
        assert one.is_batch == expected.is_batch
    assert labels.dtype == torch.uint8


def test_several_outputs_are_monais_and_labels_of_the_first() -> None:
    network, inputs = net(3, 3), images(1, 2, 12, 8, 8)
    given: dict[str, Any] = {"roi_size": 4, "overlap": 0.5, "mode": "gaussian"}
    for form in (
        lambda one: [one, one[..., ::2] * 2],
        lambda one: (one, one[:, :1]),
        lambda one: {"out": one, "aux": one + 1},
    ):
        result, wanted = both(inputs, lambda batch, form=form: form(network(batch)), **given)
        assert type(result) is type(wanted)
        named = isinstance(result, dict)
        for one, other in zip(*((result.values(), wanted.values()) if named else (result, wanted)), strict=True):
            torch.testing.assert_close(one, other)
        labels = SlidingWindowInferer(**given).labels(inputs, lambda batch, form=form: form(network(batch)))
        assert torch.equal(labels, SlidingWindowInferer(**given).labels(inputs, network))
    with pytest.raises(ValueError, match="flip_axes and average: not with gradients, several outputs"):
        SlidingWindowInferer(4, flip_axes=(0,), average="softmax")(inputs, lambda batch: (batch, batch))


def test_an_attribute_can_be_set_anew_as_that_of_monais() -> None:
    results = []
    for kind in (SlidingWindowInferer, Theirs):
        inferer = kind(roi_size=4, overlap=0.5)
        inferer.mode = "gaussian"  # type: ignore[assignment]
        with torch.no_grad():
            results.append(inferer(images(1, 2, 9, 8), net(2, 3)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("of", ["inputs", "weights"])
def test_gradients_are_monais(of: str) -> None:
    results = []
    for kind in (SlidingWindowInferer, Theirs):
        network, inputs = net(2, 3).train(of == "weights"), images(2, 2, 9, 8).requires_grad_(of == "inputs")
        scores = kind(roi_size=(4, 5), sw_batch_size=3, overlap=0.5, mode="gaussian")(inputs, network)
        scores.square().sum().backward()
        results.append([inputs.grad] if of == "inputs" else [weight.grad for weight in network.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("average", ["scores", "softmax"])
def test_mirroring_windows_is_mirroring_the_network(average: str) -> None:
    """Windows blend alike, so a network that is its own mean over mirror images gives the same."""
    network, inputs = net(3, 3), images(1, 2, 9, 8, 7)

    def mirrored(batch: Tensor) -> Tensor:
        total = torch.zeros(())
        for flip in ([], [2], [4], [2, 4]):
            scores = network(batch.flip(flip)).flip(flip)
            total = total + (scores.softmax(1) if average == "softmax" else scores) / 4
        return total

    given: dict[str, Any] = {"roi_size": (5, 4, 6), "overlap": 0.5, "mode": "gaussian", "sw_batch_size": 3}
    actual = SlidingWindowInferer(**given, flip_axes=(0, -1), average=average)(inputs, network)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = Theirs(**given)(inputs, mirrored)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "cosine"}, "mode=cosine: use constant or gaussian"),
        ({"overlap": 1.0}, "overlap=1.0: use values of at least 0 and below 1"),
        ({"overlap": (0.5, 0.5, 0.5)}, "3 values for images with 2 spatial axes"),
        ({"roi_size": (4, 4, 4)}, "roi_size"),
        ({"flip_axes": (2,)}, "these images have 2 spatial axes"),
    ],
)
def test_mistakes(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        SlidingWindowInferer(**{"roi_size": 4, **given})(images(1, 2, 8, 8), net(2, 3))
    with pytest.raises(ValueError, match="give \\(batch, channel\\) and 1 to 3 spatial axes"):
        SlidingWindowInferer(roi_size=4)(images(2, 8), net(2, 3))
