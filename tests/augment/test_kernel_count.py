"""How many kernels a batch takes on a GPU. For small patches their number, not their size, is what a batch costs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hasten.augment import smooth
from hasten.augment.chain import Chain
from hasten.augment.make_program import CaseSource, make_segment
from hasten.augment.presets import default_chain, nnunet_chain
from hasten.augment.read import coordinates_of, read
from hasten.augment.render import render
from hasten.config.schema import SampleConfig
from hasten.sample import random
from tests.augment.stores import random_store

PATCH = (12, 16, 12)
CHAINS: dict[str, Chain] = {
    "default": default_chain(SampleConfig(patch=PATCH), patch=PATCH, spatial_dims=3),
    "nnunet": nnunet_chain(PATCH),
}
BUDGET = {
    ("default", "torch"): (853, 362), ("default", "triton"): (111, 38),
    ("nnunet", "torch"): (1031, 628), ("nnunet", "triton"): (142, 283),
}  # fmt: skip
"""Kernels to draw and to render a batch: at most so many."""
VIEWS = {
    "alias", "as_strided", "detach", "diagonal", "empty", "empty_strided", "expand", "lift_fresh", "new_empty",
    "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view",
}  # fmt: skip
"""Operations that launch nothing."""


class Launches(TorchDispatchMode):
    """Counts the operations below it, one kernel each."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


class Stands:
    """Stands in for the Triton kernels on a machine without a GPU: torch's operations, counted as one kernel."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.inside = False

    def runs(self, tensor: torch.Tensor) -> bool:
        return not self.inside

    def one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.launches[function.__name__] += 1
            self.inside = True
            try:
                with _disable_current_modes():
                    return function(*args, **kwargs)
            finally:
                self.inside = False

        return call

    @property
    def modules(self) -> dict[str, Any]:
        def words(key: Any, salt: int, count: int) -> Any:
            return random.random_words(key, salt, count)

        def uniforms(key: Any, salt: int, low: float, width: float, count: int) -> Any:
            return low + width * random.uniform(key, salt, count)

        def normals(key: Any, salt: int, count: int) -> Any:
            return random.normal(key, salt, count)

        def read_by_kernel(*arguments: Any, **how: Any) -> Any:
            from hasten.augment.read import PackedCases

            *cases, case, start, place, size, out = arguments
            return read(PackedCases(*cases), case, start, coordinates_of(place, size, out), **how)

        of_random = {
            "words": words, "uniforms": uniforms, "normals": normals, "hashed": random.hash32,
            "sample_keys": random.sample_key, "salted_keys": random.salted_keys,
        }  # fmt: skip
        return {
            "sample.random_triton": SimpleNamespace(**{name: self.one(each) for name, each in of_random.items()}),
            "augment.read_triton": SimpleNamespace(read_by_kernel=self.one(read_by_kernel)),
            "augment.smooth_triton": SimpleNamespace(along=self.one(smooth._along)),
        }


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Stands:
    stands = Stands()
    monkeypatch.setattr("hasten.sample.random.triton_runs", stands.runs)
    for module in ("read", "smooth"):
        monkeypatch.setattr(f"hasten.augment.{module}.triton_runs", stands.runs)
    monkeypatch.setattr("hasten.sample.random.salt_of", lambda stream: stream)
    for name, module in stands.modules.items():
        monkeypatch.setitem(sys.modules, f"hasten.{name}", module)
        monkeypatch.setattr(f"hasten.{name}", module, raising=False)
    return stands


@contextmanager
def launched(stands: Stands | None = None) -> Iterator[Counter[str]]:
    """What is launched inside, by name."""
    names: Counter[str] = Counter()
    if stands is not None:
        stands.launches.clear()
    with Launches() as launches:
        yield names
    names.update(launches.names)
    if stands is not None:
        names.update(stands.launches)


def kernels(chain: Chain, stands: Stands | None = None) -> tuple[Counter[str], Counter[str]]:
    """To draw and to render a batch."""
    store = random_store([(14, 16, 13), (12, 20, 18)], dtype="float16")
    segment = make_segment(chain, CaseSource(store=store), batch_size=2)
    with torch.no_grad():
        with launched(stands) as draw:
            draws = segment.drawn(torch.arange(2))
        with launched(stands) as rendering:
            render(segment.stages, segment.stored(), draws, 3)
    return draw, rendering


@pytest.mark.parametrize("name", CHAINS)
def test_kernels_of_a_batch_by_torch(name: str) -> None:
    draw, rendering = kernels(CHAINS[name])
    assert draw.total() <= BUDGET[name, "torch"][0], draw
    assert rendering.total() <= BUDGET[name, "torch"][1], rendering


@pytest.mark.parametrize("name", CHAINS)
def test_kernels_of_a_batch_with_triton(name: str, triton: Stands) -> None:
    draw, rendering = kernels(CHAINS[name], triton)
    assert draw.total() <= BUDGET[name, "triton"][0], draw
    assert rendering.total() <= BUDGET[name, "triton"][1], rendering
