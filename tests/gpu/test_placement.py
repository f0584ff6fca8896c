"""Cases of which the card holds a part: the same batches as from the host alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from hasten.augment.make_program import cases_of_arena, make_segment, program_of
from hasten.augment.presets import default_chain
from hasten.cache.build import get_arena
from hasten.cases.sources import load_case_set
from hasten.config.schema import CacheConfig, SampleConfig
from hasten.feed.feed import Feed
from hasten.phantoms.organs import write_phantoms
from tests.cache.sets import SPEC


def test_a_budget_of_the_cards_memory_changes_no_batch(tmp_path: Path) -> None:
    cases = load_case_set(write_phantoms(tmp_path / "set", num_cases=6, shape=(24, 40, 40)))
    cache = CacheConfig(dir=str(tmp_path / "cache"), home="ram")
    whole = get_arena(cases, SPEC, cache)
    half = sum(sorted(whole.case_bytes)[:3])
    mixed = get_arena(cases, SPEC, replace(cache, home="auto", device=f"{half}B"), device="cuda")
    assert mixed.part is not None
    assert mixed.part.store.values["image"].is_cuda
    chain = default_chain(SampleConfig(flip_prob=(0.5, 0.5, 0.5)), patch=(16, 24, 24), spatial_dims=3)
    host = make_segment(chain, cases_of_arena(whole, 3), batch_size=4, seed=3)
    card = make_segment(chain, cases_of_arena(mixed, 3), batch_size=4, seed=3, device="cuda")
    assert card.source.part is mixed.part
    for batch, wanted in zip(Feed(program_of(card), last=12), host.batches(0, 12), strict=True):
        assert batch["image"].is_cuda
        assert torch.allclose(batch["image"].cpu(), wanted["image"], atol=2e-3)
        assert (batch["label"].cpu() != wanted["label"]).float().mean() < 1e-4
