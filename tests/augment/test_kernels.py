"""Compiled kernels: the same numbers, built once, kept on disk, and never needed."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.augment import kernels as module
from hasten.augment.chain import Chain, PerSample
from hasten.augment.contrast import Gamma
from hasten.augment.grid import Flip
from hasten.augment.intensity import Normalize, ScaleIntensity, ScaleIntensityRange, ShiftIntensity
from hasten.augment.kernels import host_kernels
from hasten.augment.noise import GaussianNoise
from hasten.augment.program import Segment
from tests.augment.stores import bind_store
from tests.augment.test_program import ALL, chain, store

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def made(own: Chain, folder: Path, batch_size: int) -> Segment:
    return bind_store(own, store(3), batch_size=batch_size, compile=True, cache_dir=folder)


@pytest.mark.slow
@needs_compiler
def test_one_kernel_compiled_once_gives_the_eager_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = chain(3, Flip(prob=0.5), GaussianNoise(prob=0.7))
    eager, compiled = bind_store(own, store(3), batch_size=4), made(own, folder, batch_size=4)
    assert compiled.compiled, compiled.why
    assert "1 of 1 kernels built" in compiled.why
    for step in range(3):
        wanted, result = eager(step), compiled(step)
        assert torch.allclose(result["image"], wanted["image"], rtol=1e-5, atol=1e-5)
        assert torch.equal(result["label"], wanted["label"])

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("is compiled again")

    monkeypatch.setattr(module.subprocess, "run", never)
    assert "from disk" in made(own, folder, batch_size=9).why  # a kernel is for one sample
    moved = chain(3, Flip(prob=0.5), Flip(prob=0.5), GaussianNoise(prob=0.1, keys=("image",)))
    assert made(moved, folder, batch_size=4).compiled  # neither place nor probability is compiled in


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dims", [2, 3])
def test_all_kernels_give_the_eager_numbers(folder: Path, dims: int) -> None:
    own = chain(dims, *ALL, Gamma(prob=0.5), Gamma(prob=0.5, p_invert_image=1.0, p_retain_stats=0.0))
    eager = bind_store(own, store(dims), batch_size=6)
    compiled = bind_store(own, store(dims), batch_size=6, compile=True, cache_dir=folder)
    assert compiled.compiled, compiled.why
    assert len(compiled.kernels.read) == 2
    for step in range(4):
        wanted, result = eager(step), compiled(step)
        assert torch.allclose(result["image"], wanted["image"], rtol=1e-5, atol=1e-3)
        assert torch.equal(result["label"], wanted["label"])


@pytest.mark.slow
@needs_compiler
def test_what_every_sample_goes_through_is_one_kernel(folder: Path) -> None:
    ops = (
        GaussianNoise(prob=0.5), Normalize(nonzero=True), ScaleIntensity(prob=1.0, factors=(-0.1, 0.1)),
        ShiftIntensity(prob=1.0, offsets=(-1, 1)), ScaleIntensityRange(a_min=-2, a_max=2), Flip(prob=0.5),
    )  # fmt: skip
    own = chain(3, *ops)
    eager, compiled = bind_store(own, store(3), batch_size=4), made(own, folder, batch_size=4)
    assert {place: count for place, (count, _) in compiled.kernels.apply.items()} == {0: 1, 1: 4}
    for step in range(2):
        assert torch.allclose(compiled(step)["image"], eager(step)["image"], rtol=1e-5, atol=1e-5)
    assert torch.equal(replace(compiled, spans=True)(1)["image"], compiled(1)["image"])


@needs_compiler
@pytest.mark.slow
def test_kernels_serve_what_follows_a_stage_that_runs_sample_by_sample(folder: Path) -> None:
    kept = PerSample(transforms=(lambda item: {**item, "image": item["image"] * 2},))
    own = chain(3, kept, ScaleIntensity(prob=1.0, factors=(0.5, 0.5)), ShiftIntensity(prob=1.0, offsets=(1, 1)))
    eager, compiled = bind_store(own, store(3), batch_size=4), made(own, folder, batch_size=4)
    assert {place: count for place, (count, _) in compiled.kernels.apply.items()} == {1: 2}
    for program in (compiled, replace(compiled, spans=True)):
        assert torch.allclose(program(1)["image"], eager(1)["image"], rtol=1e-5, atol=1e-5)


def test_without_a_compiler_it_runs_uncompiled_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    own = chain(3, GaussianNoise(prob=1))
    eager = bind_store(own, store(3), batch_size=4)
    with caplog.at_level(logging.WARNING):
        result = made(own, tmp_path, batch_size=4)
    assert not result.compiled
    assert [record.message.split(":")[0] for record in caplog.records] == ["the augmentation runs uncompiled"]
    assert torch.equal(result(0)["image"], eager(0)["image"])
    assert not list((tmp_path / "kernels").glob("*.pt2"))


def test_a_library_that_kills_who_loads_it_kills_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -SEGV $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(killed))
    result = made(chain(3, GaussianNoise(prob=1)), tmp_path, batch_size=4)
    assert not result.compiled
    assert "ended with -11" in caplog.text


@pytest.mark.slow
@needs_compiler
def test_a_damaged_library_does_not_stop_it(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = chain(3, GaussianNoise(prob=1))
    made(own, folder, batch_size=4)
    shutil.copytree(folder / "kernels", tmp_path / "kernels")
    for path in (tmp_path / "kernels").glob("*.pt2"):
        path.write_bytes(path.read_bytes()[:1000])
    result = host_kernels(bind_store(own, store(3), batch_size=4).stages, store(3), tmp_path)
    assert not result.compiled
    assert "uncompiled" in caplog.text
