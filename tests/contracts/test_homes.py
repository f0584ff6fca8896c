"""What holds for an arena in every home."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hasten.cache.build as homes
from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cases.sources import load_case_set
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig
from hasten.phantoms.organs import write_phantoms
from tests.cache.sets import SPEC, assert_holds, assert_same, tensors_of


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> CaseSet:
    return load_case_set(write_phantoms(tmp_path_factory.mktemp("phantoms"), num_cases=4, shape=(24, 40, 40)))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CacheConfig:
    return CacheConfig(dir=str(tmp_path_factory.mktemp("cache")), max_points=50)


def at(home: str, phantoms: CaseSet, cache: CacheConfig, device: str = "cpu") -> Arena:
    return get_arena(phantoms, SPEC, replace(cache, home=home), device=device)


@pytest.mark.parametrize("home", ["file", "ram", "device", "auto"])
def test_every_home_holds_the_cases(phantoms: CaseSet, cache: CacheConfig, home: str) -> None:
    arena = at(home, phantoms, cache)
    assert_holds(arena, phantoms, SPEC, cache.max_points)
    if home in ("file", "ram"):
        assert arena.home == home


@pytest.mark.parametrize("home", ["file", "ram", "device", "auto"])
def test_every_home_is_the_same_to_what_reads_it(phantoms: CaseSet, cache: CacheConfig, home: str) -> None:
    arena, reference = at(home, phantoms, cache), at("ram", phantoms, cache)
    assert_same(arena, reference)
    image = arena.store.values["image"]
    index = torch.tensor([0, 5, image.numel() - 1])
    assert torch.equal(image[index], reference.store.values["image"][index])
    assert all(tensor.is_contiguous() for tensor in tensors_of(arena))


@pytest.mark.parametrize(("cases", "home"), [(4, "ram"), (3, "file")])
def test_auto_takes_memory_where_half_of_what_is_free_holds_all(
    phantoms: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, cases: int, home: str
) -> None:
    arena = at("ram", phantoms, cache)
    monkeypatch.setattr(homes, "available_memory", lambda: 2 * sum(sorted(arena.case_bytes)[:cases]))
    chosen = at("auto", phantoms, cache)
    assert chosen.home == home
    assert (chosen.pages is None) == (cases == 4)
    assert_same(chosen, arena)


@pytest.mark.gpu
@pytest.mark.parametrize("home", ["device", "auto"])
def test_device_memory(phantoms: CaseSet, cache: CacheConfig, home: str) -> None:
    arena = at(home, phantoms, cache, "cuda")
    assert arena.home == "device"
    assert {tensor.device.type for tensor in tensors_of(arena)} == {"cuda"}
    reference = at("ram", phantoms, cache)
    assert_same(arena, reference)
    assert_same(arena.to("cpu", home="ram"), reference)
    assert_same(reference.to("cuda", home="device"), reference)
