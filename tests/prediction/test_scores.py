from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn

from hasten.prediction.scores import averaged, first_output, highest

SCORES = torch.randn(2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    "output",
    [
        SCORES,
        [SCORES, SCORES[..., ::2]],
        (SCORES,),
        ([SCORES, None], "features"),
        {"out": SCORES, "aux": None},
        torch.stack([SCORES, torch.zeros_like(SCORES)], 1),
    ],
    ids=["tensor", "list", "tuple", "nested", "mapping", "stacked heads"],
)
def test_the_first_output_counts(output: Any) -> None:
    assert torch.equal(first_output(output, 5), SCORES)


@pytest.mark.parametrize("axes", [(), (0,), (0, 2), (0, 1, 2)])
def test_the_mean_over_all_mirrorings(axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network, image = nn.Conv3d(1, 3, 3, padding=1), torch.randn(2, 1, 4, 5, 6)
    before = image.clone()
    with torch.inference_mode():
        result = averaged(network, axes)(image)
        every = []
        for count in range(len(axes) + 1):
            for chosen in combinations([2 + axis for axis in axes], count):
                scores = network(image.flip(chosen)) if chosen else network(image)
                every.append(scores.flip(chosen) if chosen else scores)
    assert len(every) == 2 ** len(axes)
    torch.testing.assert_close(result, torch.stack(every).mean(0), atol=1e-5, rtol=1e-5)
    assert torch.equal(image, before)


@pytest.mark.parametrize("classes", [1, 2, 14, 256, 300])
@pytest.mark.parametrize("form", ["contiguous", "permuted", "channels last", "small", "half"])
def test_the_highest_is_the_first_one_of_several(classes: int, form: str) -> None:
    shape = (2, 3, 4) if form == "small" else (4, 20, 60)
    # Few values, so that several classes are highest.
    scores = torch.randint(-3, 4, (classes, *shape), generator=torch.Generator().manual_seed(0)).float()
    scores = {
        "permuted": lambda: scores.permute(0, 2, 3, 1),
        "channels last": lambda: scores[None].contiguous(memory_format=torch.channels_last_3d)[0],
        "half": scores.half,
    }.get(form, lambda: scores)()
    result = highest(scores)
    assert result.dtype == (torch.uint8 if classes <= 256 else torch.int16)
    assert torch.equal(result.long(), torch.from_numpy(scores.float().numpy().argmax(0)))
