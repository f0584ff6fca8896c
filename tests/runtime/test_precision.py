from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hasten.runtime.precision import autotuned, tensor_cores

CUDA = torch.device("cuda")
"""A name; the block touches no card."""


@pytest.fixture(autouse=True)
def flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    yield
    torch.use_deterministic_algorithms(False)


def test_cudnn_looks_for_the_fastest_inside_only() -> None:
    seen = []

    def step() -> None:
        with autotuned(CUDA):
            seen.append(torch.backends.cudnn.benchmark)
            raise KeyError

    with pytest.raises(KeyError):
        step()
    assert seen == [True]
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize("how", ["algorithms", "cudnn"])
def test_not_where_the_same_bits_are_asked_for(how: str) -> None:
    if how == "algorithms":
        torch.use_deterministic_algorithms(True)
    else:
        torch.backends.cudnn.deterministic = True
    with autotuned(CUDA):
        assert not torch.backends.cudnn.benchmark


def switches() -> list[object]:
    """All of torch's switches of TF32; the older ones raise where a newer one contradicts them."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer = [matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision]  # type: ignore[attr-defined]
    return [*newer, matmul.allow_tf32, cudnn.allow_tf32, torch.get_float32_matmul_precision()]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_every_switch_of_tf32_says_the_same_inside(precision: str, before: bool) -> None:
    """Inductor asks the newer and the older ones."""
    whole = switches()
    torch.backends.cuda.matmul.allow_tf32 = before
    on = precision == "tf32"
    try:
        result = switches()
        with tensor_cores(CUDA, precision):
            inside = [*["tf32" if on else "ieee"] * 3, on, on, "high" if on else "highest"]
            assert switches() == inside
        assert switches() == result
    finally:
        torch.backends.cuda.matmul.allow_tf32 = bool(whole[3])
        torch.backends.cuda.matmul.fp32_precision = whole[0]  # type: ignore[attr-defined]
    assert switches() == whole
