"""The C++ counts against torch's operations in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from hasten.nets.losses.soft_counts import cpu_counts_take, soft_counts
from hasten.observe.env import cxx_compiler

pytestmark = pytest.mark.skipif(cxx_compiler() is None, reason="needs a C++ compiler")


def last(image: Tensor) -> Tensor:
    return image.contiguous(memory_format=torch.channels_last_3d if image.ndim == 5 else torch.channels_last)


def counted(
    scores: Tensor, label: Tensor, weights: Tensor, *, surprised: bool, ignore_index: int | None
) -> list[Tensor]:
    """Counts, surprise, and the gradient of their weighted sum."""
    scores = scores.clone(memory_format=torch.preserve_format).requires_grad_()
    counts, surprise = soft_counts(scores, label, surprised=surprised, ignore_index=ignore_index)
    assert (surprise is not None) == surprised
    results = [counts.hit, counts.predicted, counts.labelled, *([] if surprise is None else [surprise])]
    weighted = [(each * weight.to(each.dtype)).sum() for each, weight in zip(results, weights, strict=False)]
    torch.stack(weighted).sum().backward()
    assert scores.grad is not None
    return [*results, scores.grad]


@given(
    count=st.integers(1, 3),
    classes=st.integers(2, 20),
    sides=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    scale=st.sampled_from([1.0, 30.0, 200.0]),
    channels_last=st.booleans(),
    surprised=st.booleans(),
    ignored=st.sampled_from([None, -1, 255, 1]),
    seed=st.integers(0, 99),
)
@example(2, 3, [20, 30, 40], 3.0, True, True, None, 0)  # more than one piece
def test_counts_and_gradients_are_torchs(
    count: int, classes: int, sides: list[int], scale: float, channels_last: bool, surprised: bool,
    ignored: int | None, seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, classes, *sides, generator=generator) * scale
    scores = last(scores) if channels_last else scores
    label = torch.randint(0, classes, (count, 1, *sides), generator=generator)
    if ignored is not None:
        label[torch.rand(label.shape, generator=generator) < 0.2] = ignored
    label = label.to(torch.uint8) if ignored != -1 else label
    assert cpu_counts_take(scores, label)
    weights = torch.randn(4, count, classes, generator=generator)
    results, wanted = (
        counted(each, label, weights, surprised=surprised, ignore_index=ignored) for each in (scores, scores.double())
    )
    assert results[-1].stride() == scores.stride()
    for result, exact in zip(results, wanted, strict=True):
        assert (result.double() - exact).abs().max() <= 2e-5 * max(1.0, float(exact.abs().max()))


def test_the_results_do_not_depend_on_the_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = last(torch.randn(2, 3, 30, 40, 20, generator=generator))
    label = torch.randint(0, 3, (2, 1, 30, 40, 20), generator=generator)
    weights = torch.randn(4, 2, 3, generator=generator)
    outcomes, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outcomes.append(counted(scores, label, weights, surprised=True, ignore_index=None))
    finally:
        torch.set_num_threads(before)
    for others in outcomes[1:]:
        assert all(torch.equal(one, other) for one, other in zip(outcomes[0], others, strict=True))


@pytest.mark.parametrize("value", [3, -1, 1 << 40])
def test_a_label_that_is_no_class_is_refused(value: int) -> None:
    label = torch.zeros(1, 1, 4, 5, dtype=torch.int64)
    label[0, 0, 2, 3] = value
    with pytest.raises(IndexError, match="a label is none of the classes; the network needs an output for each"):
        soft_counts(torch.randn(1, 3, 4, 5), label, surprised=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_not_hidden(value: float) -> None:
    scores = torch.randn(1, 3, 4, 5)
    scores[0, 1, 2, 3] = value
    assert not soft_counts(scores, torch.zeros(1, 1, 4, 5), surprised=True)[0].predicted.isfinite().all()


def test_other_scores_are_torchs() -> None:
    label = torch.zeros(1, 1, 4, 5)
    assert cpu_counts_take(torch.randn(1, 3, 4, 5), label)
    assert not cpu_counts_take(torch.randn(1, 3, 4, 5).double(), label)
    assert not cpu_counts_take(torch.randn(1, 65, 4, 5), label)
