"""An arena of which the card holds a part: the same batches as from the host alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hasten.cache.build import get_arena
from hasten.cases.phantom import write_phantoms
from hasten.cases.sources import load_case_set
from hasten.config.schema import CacheConfig, SampleConfig
from hasten.feed.feed import Feed
from hasten.sample.mixed import make_mixed
from hasten.sample.program import make_program
from hasten.sample.types import BatchSpec
from tests.cache.sets import SPEC

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("compile", [False, True])
def test_a_budget_of_the_cards_memory_changes_no_batch(tmp_path: Path, compile: bool) -> None:
    cases = load_case_set(write_phantoms(tmp_path / "set", num_cases=6, shape=(24, 40, 40)))
    cache = CacheConfig(dir=str(tmp_path / "cache"), home="ram")
    whole = get_arena(cases, SPEC, cache)
    half = sum(sorted(whole.case_bytes)[:3])
    mixed = get_arena(cases, SPEC, replace(cache, home="auto", device=f"{half}B"), device="cuda")
    assert mixed.part is not None
    assert mixed.part.tables.image.is_cuda
    sample = SampleConfig(patch=(16, 24, 24), batch_size=4, flip_prob=(0.5, 0.5, 0.5))
    spec = BatchSpec(sample=sample, num_channels=1, spatial_dims=3)
    everything = tuple(range(6))
    reference = make_program(spec, whole.tables, everything, 3, compile=False)
    program = make_mixed(spec, mixed, everything, 3, compile=compile)
    assert program.compiled == compile, program.why
    feed = Feed(program, device=torch.device("cuda"), first=0, last=12)
    for (image, label), (wanted_image, wanted_label) in zip(feed, reference.batches(0, 12), strict=True):
        assert image.is_cuda
        assert torch.allclose(image.cpu(), wanted_image, atol=2e-3)
        assert (label.cpu() != wanted_label).float().mean() < 1e-4
