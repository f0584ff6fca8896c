"""What holds for an arena in every home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hasten.cache.homes as homes
from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cases.sources import load_case_set
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig
from hasten.phantoms.organs import write_phantoms
from tests.cache.sets import SPEC, assert_holds, assert_same, tensors_of

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
    image = arena.store.values["image"]
    index = torch.tensor([0, 5, image.numel() - 1])
    assert torch.equal(image[index], reference.store.values["image"][index])
    assert all(tensor.is_contiguous() for tensor in tensors_of(arena))


@pytest.mark.parametrize("start", ["file", "ram"])
def test_moving_is_a_change_of_home_only(phantoms: CaseSet, cache: CacheConfig, start: str) -> None:
    arena = at(start, phantoms, cache)
    moved = arena.to("cpu", home="ram")
    assert moved.home == "ram"
    assert_same(arena, moved)


@pytest.mark.parametrize(
    ("cases", "home"), [(4, "ram"), (3, "3 cases in ram, 1 cases in file"), (0, "4 cases in file")]
)
def test_auto_keeps_what_half_of_the_free_memory_holds(
    phantoms: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, cases: int, home: str
) -> None:
    arena = at("ram", phantoms, cache)
    monkeypatch.setattr(homes, "available_memory", lambda: 2 * sum(sorted(arena.case_bytes)[:cases]))
    chosen = at("auto", phantoms, cache)
    assert chosen.home == home
    assert (chosen.pages is None) == (cases == 4)
    assert_same(chosen, arena)


SIZES = [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("device", "ram", "result"),
    [
        (10, 0, ((0, 1, 2, 3), (), ())),
        (9, 1, ((0, 1, 2), (3,), ())),
        (5, 5, ((0, 3), (1, 2), ())),
        (0, 7, ((), (0, 1), (2, 3))),
        (0, 0, ((), (), (0, 1, 2, 3))),
    ],
)
def test_cases_fill_one_home_after_the_other(device: int, ram: int, result: tuple[tuple[int, ...], ...]) -> None:
    assert tuple(homes.place(SIZES, range(4), device=device, ram=ram)) == result


@pytest.mark.parametrize(
    ("device", "free_gib", "set_to", "bytes_"),
    [("cuda", 8, "auto", 4 * GIB), ("cuda", 8, "1.5 GiB", 3 * GIB // 2), ("cpu", 8, "8GiB", 0)],
)
def test_the_devices_budget(
    monkeypatch: pytest.MonkeyPatch, device: str, free_gib: int, set_to: str, bytes_: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_gib * GIB, 100 * GIB))
    assert homes._device_budget(CacheConfig(device=set_to), torch.device(device)) == bytes_


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

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * GIB, 2 * GIB))
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
    assert {tensor.device.type for tensor in tensors_of(arena)} == {"cuda"}
    reference = at("ram", phantoms, cache)
    assert_same(arena, reference)
    assert_same(arena.to("cpu", home="ram"), reference)
    assert_same(reference.to("cuda", home="device"), reference)
