"""What holds for an arena in every home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hasten.cache.build as build
from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cases.phantom import write_phantoms
from hasten.cases.sources import load_case_set
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig
from tests.cache.sets import SPEC, assert_holds, assert_same

GIB = 2**30


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
    index = torch.tensor([0, 5, arena.tables.image.numel() - 1])
    assert torch.equal(arena.tables.image[index], reference.tables.image[index])
    assert all(getattr(arena.tables, name).is_contiguous() for name in ("image", "label", "points"))


def test_on_a_cpu_the_device_home_is_memory(phantoms: CaseSet, cache: CacheConfig) -> None:
    assert at("device", phantoms, cache).home == "ram"


@pytest.mark.parametrize("start", ["file", "ram"])
def test_moving_is_a_change_of_home_only(phantoms: CaseSet, cache: CacheConfig, start: str) -> None:
    arena = at(start, phantoms, cache)
    moved = arena.to("cpu", home="ram")
    assert moved.home == "ram"
    assert_same(arena, moved)


@pytest.mark.parametrize(("spare", "home"), [(-1, "file"), (0, "ram")])
def test_auto_takes_at_most_half_of_what_is_free(
    phantoms: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, spare: int, home: str
) -> None:
    arena = at("ram", phantoms, cache)
    size = arena.num_bytes + arena.tables.points.numel() * 4
    monkeypatch.setattr(build, "available_memory", lambda: 2 * size + spare)
    chosen = at("auto", phantoms, cache)
    assert chosen.home == home
    assert_same(chosen, arena)


@pytest.mark.parametrize(
    ("device", "device_gib", "host_gib", "home"),
    [
        ("cuda", 8, 0, "device"),
        ("cuda", 7, 8, "ram"),
        ("cuda", 7, 7, "file"),
        ("cpu", 100, 8, "ram"),
        ("cpu", 100, 7, "file"),
    ],
)
def test_auto_takes_the_fastest_home_with_room(
    monkeypatch: pytest.MonkeyPatch, device: str, device_gib: int, host_gib: int, home: str
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (device_gib * GIB, 100 * GIB))
    monkeypatch.setattr(build, "available_memory", lambda: host_gib * GIB)
    assert build._choose_home(4 * GIB, torch.device(device)) == home


@pytest.mark.parametrize("home", ["auto", "device"])
def test_the_device_home_is_checked_and_explains_a_lack_of_room(
    phantoms: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, home: str, caplog: pytest.LogCaptureFixture
) -> None:
    at("ram", phantoms, cache)
    folder = next((Path(str(cache.dir)) / "arena").iterdir())
    whole = (folder / "label.bin").read_bytes()
    (folder / "label.bin").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    def no_room(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GIB, GIB))
    monkeypatch.setattr(Arena, "to", no_room)
    with pytest.raises(ValueError, match=r"cuda:0.*cache\.home=auto"):
        at(home, phantoms, cache, "cuda:0")
    assert "label.bin" in caplog.text
    assert_holds(at("ram", phantoms, cache), phantoms, SPEC, cache.max_points)


@pytest.mark.gpu
@pytest.mark.parametrize("home", ["device", "auto"])
def test_device_memory(phantoms: CaseSet, cache: CacheConfig, home: str) -> None:
    arena = at(home, phantoms, cache, "cuda")
    assert arena.home == "device"
    assert {getattr(arena.tables, name).device.type for name in ("image", "label", "points", "offset")} == {"cuda"}
    reference = at("ram", phantoms, cache)
    assert_same(arena, reference)
    assert_same(arena.to("cpu", home="ram"), reference)
    pinned = reference.to("cpu", home="ram", pin=True)
    assert pinned.tables.image.is_pinned()
    assert_same(pinned.to("cuda", home="device"), reference)
