"""Threads, homes, rates, the convolution's probe and what becomes of them all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv3d

from hasten.config.size import size_text
from hasten.doctor.environment import compiler, doctor
from hasten.doctor.environment.check import Check, worst
from hasten.doctor.environment.compiler import check_compiler
from hasten.doctor.environment.conv import TINY, Cell, check_conv3d, probe_conv3d
from hasten.doctor.environment.doctor import check_load, examine, lines, verdict, write_page
from hasten.doctor.environment.homes import GIB, GpuMemory, Homes, check_homes, existing, homes_here
from hasten.doctor.environment.rates import Rates, cache_disk_rate, check_rates, data_disk_rate, read_rate
from hasten.doctor.environment.threads import Threads, check_threads, threads_here
from hasten.observe.cores import cpu_quota
from hasten.observe.rundir import write_json

CPU = torch.device("cpu")


def levels(checks) -> dict[str, str]:
    return {check.name: check.level for check in checks}


# Threads

FULL = Threads(usable=8, logical=8, physical=8, torch=8)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, set()),
        ({"torch": 1}, {"threads"}),
        ({"torch": 16}, {"threads", "spin"}),
        ({"logical": 16, "usable": 16, "torch": 8}, set()),  # hyperthreads need no thread of their own
        ({"quota": 2.0}, {"threads", "spin"}),
        ({"quota": 2.0, "torch": 2}, set()),
        ({"quota": 2.5, "torch": 3, "variables": {"OMP_WAIT_POLICY": "PASSIVE"}}, set()),
        ({"quota": 0.5, "torch": 1}, {"quota"}),
        ({"usable": 1, "torch": 1}, {"affinity"}),
        ({"others": 1.0}, {"spin"}),
        ({"others": 0.2}, set()),
        ({"others": 1.0, "torch": 1, "usable": 2, "physical": 1}, set()),
        ({"others": 1.0, "variables": {"GOMP_SPINCOUNT": "1000"}}, set()),
        ({"quota": 6.0}, {"threads", "spin"}),
        ({"openmp": ("gomp", "iomp5")}, {"openmp"}),
        ({"variables": {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "1"}}, {"thread variables"}),
        ({"variables": {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "8"}}, set()),
        ({"variables": {"KMP_AFFINITY": "compact"}}, {"KMP_AFFINITY"}),
        ({"variables": {"KMP_AFFINITY": "disabled"}}, set()),
        ({"variables": {"OMP_WAIT_POLICY": "ACTIVE"}}, {"OMP_WAIT_POLICY"}),
        ({"variables": {"OMP_WAIT_POLICY": "PASSIVE"}}, set()),
        ({"variables": {"PYTHONDEVMODE": "1", "OMP_PROC_BIND": "true"}}, {"PYTHONDEVMODE", "OMP_PROC_BIND"}),
        ({"variables": {"CUDA_LAUNCH_BLOCKING": "0", "OMP_PROC_BIND": "false"}}, set()),
    ],
)  # fmt: skip
def test_threads(changed, wrong):
    result = check_threads(dataclasses.replace(FULL, **changed))
    assert {check.name for check in result if check.level != "ok"} == wrong
    assert all(check.remedy for check in result if check.level != "ok")


def test_the_number_to_set_is_that_of_the_cores_that_are_allowed():
    (few,) = check_threads(dataclasses.replace(FULL, torch=1, quota=3.0))
    assert few.remedy == "export OMP_NUM_THREADS=3"
    assert threads_here().torch == torch.get_num_threads()


def test_the_quota_of_either_kind_of_control_group(tmp_path: Path):
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    (root / "job").mkdir(parents=True)
    own.write_text("0::/job/inner\n")
    assert cpu_quota(own, root) is None
    (root / "cpu.max").write_text("400000 100000\n")
    (root / "job/cpu.max").write_text("max 100000\n")
    assert cpu_quota(own, root) == 4.0
    own.write_text("3:cpu,cpuacct:/job\n")
    (root / "cpu/job").mkdir(parents=True)
    (root / "cpu/job/cpu.cfs_quota_us").write_text("150000\n")
    (root / "cpu/job/cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(own, root) == 1.5
    assert cpu_quota(tmp_path / "none", root) is None


# Homes

ROOMY = Homes(cache="/c", cache_free=100 * GIB, ram_total=64 * GIB, ram_available=32 * GIB, shm_free=32 * GIB)


@pytest.mark.parametrize(
    ("changed", "name", "level"),
    [
        ({"cache_free": 5 * GIB}, "cache", "warn"),
        ({"cache_free": GIB // 2}, "cache", "bad"),
        ({"ram_available": GIB}, "memory", "warn"),
        ({"ram_available": GIB // 4}, "memory", "bad"),
        ({"shm_free": 2**26}, "shared memory", "warn"),
        ({"gpus": (GpuMemory(name="H", total=80 * GIB, free=20 * GIB),)}, "cuda:0", "warn"),
        ({"gpus": (GpuMemory(name="H", total=80 * GIB, free=79 * GIB),)}, "cuda:0", "ok"),
    ],
)
def test_homes(changed, name, level):
    result = levels(check_homes(dataclasses.replace(ROOMY, **changed)))
    assert result[name] == level
    assert all(other == "ok" for each, other in result.items() if each != name)


def test_a_cache_that_is_not_there_yet_has_the_room_of_what_is_above_it(tmp_path: Path):
    assert existing(tmp_path / "a/b") == tmp_path
    assert homes_here(tmp_path / "a/b").cache_free > 0
    assert not (tmp_path / "a").exists()
    assert [size_text(value) for value in (5, 2**26, 3.5 * GIB, 500 * GIB)] == ["5 B", "64 MiB", "3.5 GiB", "500 GiB"]


# Rates


def test_disks_are_read_and_left_as_they_were(tmp_path: Path):
    cache = tmp_path / "cache"
    rate = cache_disk_rate(cache)
    assert rate is not None
    assert rate > 0
    assert list(tmp_path.iterdir()) == []
    assert data_disk_rate(tmp_path) is None
    (tmp_path / "case.nii.gz").write_bytes(b"x" * 5000)
    before = (tmp_path / "case.nii.gz").stat()
    assert (data_disk_rate(tmp_path) or 0) > 0
    assert (data_disk_rate(tmp_path / "case.nii.gz") or 0) > 0
    assert (tmp_path / "case.nii.gz").stat().st_mtime_ns == before.st_mtime_ns
    assert read_rate([tmp_path / "none"]) is None


def test_only_gross_rates_are_called_amiss():
    good = Rates(cache_disk=1e9, data_disk=1e9, gunzip=700e6, gunzip_plain=400e6, copy=1e10, matmul={"fp32": 1e11})
    assert set(levels(check_rates(good)).values()) == {"ok"}
    bad = Rates(cache_disk=50e6, data_disk=10e6, gunzip=400e6, gunzip_plain=400e6, pinned=1e9, pageable=1e9)
    assert levels(check_rates(bad)) == {
        "disk of the cache": "warn", "disk of the data": "warn", "gunzip": "warn", "host to device": "warn",
    }  # fmt: skip


# The convolution


def in_float32(image, weight):
    """Never in a CPU's bf16, which may write past the end of its memory on the tiny map."""
    with torch.autocast("cpu", enabled=False):
        return conv3d(image, weight, padding=1)


def test_torchs_own_float32_is_sound_and_timed():
    cells = probe_conv3d(CPU, conv=in_float32, rounds=1)
    wanted = [cell for cell in cells if cell.precision == "fp32"]
    assert len(wanted) == 4
    assert all(cell.sound and cell.seconds > 0 for cell in wanted)


class _Halved(torch.autograd.Function):
    """Right forward, wrong backward: what a loss does not show."""

    @staticmethod
    def forward(ctx, image, weight):
        ctx.save_for_backward(image, weight)
        return in_float32(image, weight)

    @staticmethod
    def backward(ctx, back):
        image, weight = ctx.saved_tensors
        grad = torch.nn.grad.conv3d_weight(image, weight.shape, back, padding=1)
        return None, grad * 0.5


def test_a_wrong_gradient_behind_a_right_output_is_found():
    cells = probe_conv3d(CPU, conv=_Halved.apply, rounds=1)
    fp32 = [cell for cell in cells if cell.precision == "fp32"]
    assert all(cell.forward_error < 1e-4 and cell.gradient_error == pytest.approx(0.5, abs=1e-3) for cell in fp32)
    assert "bad" in levels(check_conv3d(fp32, "cpu")).values()


def test_a_probe_that_fails_is_told_and_not_raised():
    def broken(image, weight):
        raise RuntimeError("no such algorithm\nmore")

    cells = probe_conv3d(CPU, conv=broken, rounds=1)
    assert all(cell.failure == "no such algorithm" and not cell.sound for cell in cells)
    assert any("no such algorithm" in check.message for check in check_conv3d(cells, "cpu"))


def cell(**changed) -> Cell:
    plain = Cell(case="map", precision="fp32", channels_last=False, seconds=0.01, forward_error=0, gradient_error=0)
    return dataclasses.replace(plain, **changed)


def test_verdicts_on_cells():
    assert levels(check_conv3d([cell()], "cpu")) == {"conv3d": "ok"}
    nan = cell(precision="bf16", forward_error=float("nan"))
    assert levels(check_conv3d([cell(), nan], "cuda"))["bf16 contiguous, map"] == "bad"
    tiny = cell(case=TINY, precision="bf16", gradient_error=1e30)
    assert levels(check_conv3d([cell(), tiny], "cpu"))[f"bf16 contiguous, {TINY}"] == "warn"
    assert levels(check_conv3d([cell(), tiny], "cuda"))[f"bf16 contiguous, {TINY}"] == "bad"


# The compiler


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "cxx_compiler", lambda: None)
    (result,) = check_compiler(whole=True)
    assert result.level == "warn"
    assert "g++" in result.remedy


@pytest.mark.parametrize(("headers", "word"), [(False, "python3-dev"), (True, "OpenMP")])
def test_a_compiler_that_does_not_build(headers, word, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    if headers:
        (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setattr(compiler.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    (result,) = check_compiler(whole=True, seconds=60.0)
    assert result.level == "warn"
    assert word in result.remedy


# The whole


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the slow measurements."""
    cells = (cell(), cell(precision="bf16", gradient_error=float("nan"), case=TINY))
    monkeypatch.setattr(doctor, "_WATCH_SECONDS", 0.02)
    monkeypatch.setattr(doctor, "probe_conv3d", lambda device: cells)
    monkeypatch.setattr(doctor, "measure_rates", lambda *args, **kwargs: Rates(cache_disk=1e9, copy=1e10))
    monkeypatch.setattr(doctor, "check_compiler", lambda whole: (Check(area="compiler", name="g++", message="ok"),))


def test_an_examination_as_text_json_and_page(quick, tmp_path: Path):
    said: list[str] = []
    result = examine(cache=tmp_path / "cache", echo=said.append)
    assert said
    text = "\n".join(lines(result))
    assert all(check.message in text and check.remedy in text for check in result.checks)
    assert result.level == worst(result.checks)
    write_json(tmp_path / "doctor.json", result)
    content = json.loads((tmp_path / "doctor.json").read_text())
    assert content["cells"][1]["gradient_error"] is None
    assert content["versions"]["torch"] == result.versions.torch
    page = write_page(result, tmp_path / "doctor.html").read_text()
    assert "Threads and affinity" in page
    assert result.checks[0].message in page


def test_a_data_set_that_is_not_there(tmp_path: Path):
    with pytest.raises(ValueError, match="no such file or folder"):
        examine(data=tmp_path / "none")


def test_the_verdict_counts(quick, tmp_path: Path):
    result = examine(cache=tmp_path)
    checks = (
        Check(area="load", name="a", message=""),
        Check(area="load", name="b", level="bad", message="", remedy="x"),
    )
    assert verdict(dataclasses.replace(result, checks=checks[:1])) == "All 1 checks are well."
    assert verdict(dataclasses.replace(result, checks=checks)) == "Of 2 checks 1 is bad; first to look at: b."
    assert check_load(0.1).level == "ok"
    assert check_load(1.5).level == "warn"


@pytest.mark.slow
def test_a_real_examination_has_every_area():
    result = examine()
    assert {check.area for check in result.checks} == {
        "versions", "compiler", "conv3d", "rates", "threads", "homes", "load",
    }  # fmt: skip
