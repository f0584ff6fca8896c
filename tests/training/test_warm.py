"""What is compiled ahead is found again: in the cache folder, and in an image's folder beside a read-only cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hasten
from hasten.config.schema import RunConfig
from hasten.nets.cpu import library as module
from hasten.observe import env
from hasten.observe.env import cxx_compiler
from hasten.training.run import train

COMPILER = """#!/bin/sh
echo call >> {calls}
while [ $# -gt 1 ]; do if [ "$1" = -o ]; then : > "$2"; fi; shift; done
"""
"""Stands in for a compiler: makes empty files, and counts its calls."""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file with a line for each call of the compiler, which is a stand-in; the cache folder is empty."""
    counted, compiler = tmp_path / "calls", tmp_path / "g++"
    counted.touch()
    compiler.write_text(COMPILER.format(calls=counted))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HASTEN_KERNELS", raising=False)
    module._built.cache_clear()
    yield counted
    module._built.cache_clear()


def count(calls: Path) -> int:
    module._built.cache_clear()
    return len(calls.read_text().splitlines())


def test_every_processor_finds_its_functions(calls: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "cpu_flags", lambda: {*module._AVX2})
    files = hasten.warm()
    assert len(set(files)) == 3
    assert all(path.parent == tmp_path / "cache/kernels" for path in files)
    made = count(calls)
    assert hasten.warm() == files
    for flags, path in zip(({*module._AVX512, *module._AVX2}, {*module._AVX2}, set()), files, strict=True):
        monkeypatch.setattr(module, "cpu_flags", lambda flags=flags: flags)
        assert module.library() == path
    assert count(calls) == made


def test_another_architecture_has_one_library(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_flags", lambda: {"asimd"})
    assert hasten.warm() == [module.library()]


def test_an_image_s_functions_are_used_whatever_the_cache_is(
    calls: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = hasten.warm()
    image = tmp_path / "image"
    shutil.move(tmp_path / "cache/kernels", image)
    made = count(calls)
    monkeypatch.setenv("HASTEN_KERNELS", str(image))
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").touch()  # nothing can be written there
    monkeypatch.setattr(module, "cxx_compiler", lambda: pytest.fail("is not needed"))
    assert hasten.warm() == [image / path.name for path in files]
    assert count(calls) == made


def test_without_a_folder_or_a_compiler_it_says_what_to_do(
    calls: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(calls))
    with pytest.raises(ValueError, match=r"calls/kernels: .*HASTEN_CACHE"):
        hasten.warm()
    assert count(calls) == 0
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    for system, remedy in {"linux": "apt-get install g[+][+]", "darwin": "xcode-select --install"}.items():
        monkeypatch.setattr(env, "sys", SimpleNamespace(platform=system))
        with pytest.raises(ValueError, match=f"there is no C[+][+] compiler .*: {remedy}"):
            hasten.warm()


def test_windows_has_nothing_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sys", SimpleNamespace(platform="win32"))
    assert hasten.warm() == []


def test_a_run_in_a_read_only_folder_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {name: value for name, value in os.environ.items() if name != "HASTEN_KERNELS"}
    environment |= {"HASTEN_CACHE": str(tmp_path / "file")}
    code = "from hasten.nets.cpu.kernels import cpu_kernels; assert cpu_kernels().functions is None"
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    (line,) = process.stderr.splitlines()
    assert line.startswith("norms, losses and convolutions of few channels run as torch's operations: ")
    assert f"{tmp_path}/file/kernels" in line
    assert "HASTEN_CACHE" in line


@pytest.mark.slow
@pytest.mark.skipif(cxx_compiler() is None, reason="needs a C++ compiler")
def test_a_run_that_was_made_ready_compiles_and_prepares_nothing(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    module._built.cache_clear()
    config = make(f"cache.dir={tmp_path}/cache", "train.steps=2")
    state = torch.get_rng_state()
    files = hasten.warm(config)
    assert torch.equal(torch.get_rng_state(), state)
    before = sorted((tmp_path / "cache").rglob("*"))
    assert {*files} < {*before}
    monkeypatch.setenv("PATH", "")  # no compiler
    train(config, tmp_path / "run")
    assert sorted((tmp_path / "cache").rglob("*")) == before
    module._built.cache_clear()
