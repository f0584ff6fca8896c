"""Weighted sums of windows: which way is taken, and the kernel's values in Triton's interpreter.

The interpreter is chosen when Triton is imported: `TRITON_INTERPRET=1 pytest tests/engine/test_weighted_add.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.engine import weighted_add as module
from hasten.engine.weighted_add import add_weighted

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")


def test_without_a_gpu_torch_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALLEST", 0)
    sums, scores, weight = torch.ones(2, 3, 4, 5), torch.full((2, 3, 4, 5), 2.0), torch.full((3, 4, 5), 0.5)
    add_weighted(sums, scores, weight)
    assert torch.equal(sums, torch.full((2, 3, 4, 5), 2.0))


@pytest.mark.parametrize("pays", [True, False])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("small", [True, False])
def test_the_kernel_adds_large_cells_where_it_pays(
    pays: bool, alike: bool, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_kernel: list[torch.Tensor] = []
    stand_in = SimpleNamespace(
        rows_alike=lambda *_: alike, add_weighted_by_kernel=lambda sums, *_: by_kernel.append(sums)
    )
    monkeypatch.setitem(sys.modules, "hasten.engine.weighted_add_triton", stand_in)
    monkeypatch.setattr(module, "kernels_take", lambda _: True)
    monkeypatch.setattr(module, "_kernel_pays", lambda *_: pays)
    monkeypatch.setattr(module, "_SMALLEST", 121 if small else 120)
    sums, scores, weight = torch.ones(2, 3, 4, 5), torch.full((2, 3, 4, 5), 2.0), torch.full((3, 4, 5), 0.5)
    add_weighted(sums, scores, weight)
    assert len(by_kernel) == (pays and alike and not small)
    assert torch.equal(sums, torch.full_like(sums, 1.0 if by_kernel else 2.0))


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="is what runs the others")
def test_the_kernel_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, timeout=250)
    assert done.returncode == 0, done.stdout.decode()[-2000:]


@interpreted
@given(
    classes=st.integers(1, 20),
    sides=st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 40)),
    last=st.booleans(),
    types=st.tuples(*[st.sampled_from([torch.float32, torch.bfloat16, torch.float16])] * 2),
    constant=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_kernel_adds_as_torch_does_and_nothing_beside(
    classes: int, sides: tuple[int, int, int], last: bool, types: tuple[torch.dtype, torch.dtype], constant: bool,
    seed: int,
) -> None:  # fmt: skip
    from hasten.engine.weighted_add_triton import add_weighted_by_kernel, rows_alike

    generator = torch.Generator().manual_seed(seed)
    layout = torch.channels_last_3d if last else torch.contiguous_format
    whole = [
        torch.randn(1, classes, *(side + 3 for side in sides), generator=generator)
        .to(dtype)
        .contiguous(memory_format=layout)[0]
        for dtype in types
    ]
    cut = (slice(None), *(slice(2, 2 + side) for side in sides))
    weight = torch.rand([side + 3 for side in sides], generator=generator)[cut[1:]]
    weight = torch.full((), 0.5).expand(sides) if constant else weight
    sums, scores = whole
    wanted = sums.clone()
    wanted[cut] = (wanted[cut].float() + scores[cut].float() * weight).to(wanted.dtype)
    assert rows_alike(sums[cut], scores[cut])
    add_weighted_by_kernel(sums[cut], scores[cut], weight)
    assert torch.allclose(sums.float(), wanted.float(), rtol=1e-2 if types[0] != torch.float32 else 1e-6, atol=1e-6)
    sums[cut] = wanted[cut]
    assert torch.equal(sums, wanted)
