"""Versions, threads, storage, the convolution's probe and what becomes of them all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import conv3d

from hasten.doctor.environment import examine as machine
from hasten.doctor.environment import storage
from hasten.doctor.environment.check import AREAS, Check
from hasten.doctor.environment.conv import Cell, check_conv3d, probe_conv3d
from hasten.doctor.environment.examine import check_compiler, check_load, examine, lines, verdict, write_page
from hasten.doctor.environment.storage import GIB, check_storage, disk_rate, room
from hasten.doctor.environment.threads import Threads, check_threads, threads_here
from hasten.doctor.environment.versions import Versions, check_versions, cudnn_text, versions_here
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
        ({"variables": {"KMP_AFFINITY": "compact"}}, {"KMP_AFFINITY"}),
        ({"variables": {"KMP_AFFINITY": "disabled"}}, set()),
        ({"variables": {"OMP_WAIT_POLICY": "ACTIVE"}}, {"OMP_WAIT_POLICY"}),
        ({"variables": {"OMP_WAIT_POLICY": "PASSIVE"}}, set()),
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


# Versions

SOUND = Versions(python="3.12.4", torch="2.13.0+cu130", cuda="13.0", cudnn="9.20.0", driver="590.10", gpu=True)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, set()),
        ({"torch": "2.12.1+cpu", "cuda": None, "cudnn": None, "driver": None, "gpu": False}, set()),
        ({"cudnn": "9.7.1"}, set()),
        ({"cudnn": "9.8.0"}, {"conv3d-bf16-wrong"}),
        ({"cudnn": "9.14.9"}, {"conv3d-bf16-wrong", "conv3d-tf32-broken"}),
        ({"cudnn": "9.15.1"}, {"conv3d-tf32-broken"}),
        ({"cudnn": "9.16.0"}, set()),
        ({"gpu": False}, {"gpu-unused"}),
        ({"gpu": False, "cuda": None, "cudnn": None, "torch": "2.13.0+cpu"}, {"gpu-unused"}),
        ({"cpu_bf16": True}, {"cpu-bf16-tiny-maps"}),
        ({"cpu_bf16": True, "torch": "2.14.0a0+git1"}, set()),
        ({"cpu_bf16": True, "torch": "2.12.0"}, set()),
    ],
)
def test_known_conflicts_of_versions(changed, wrong):
    result = check_versions(dataclasses.replace(SOUND, **changed))
    assert {check.name for check in result if check.level != "ok"} == wrong
    assert all(check.remedy for check in result if check.level != "ok")


def test_this_process_knows_its_versions():
    here = versions_here()
    assert here.torch.startswith("2.")
    assert (here.cudnn is None) or here.cuda is not None
    assert [cudnn_text(value) for value in (8902, 91002, 92000)] == ["8.9.2", "9.10.2", "9.20.0"]


# Storage


def test_a_cache_that_is_not_there_yet_is_left_so(tmp_path: Path):
    result = levels(check_storage(tmp_path / "a/b"))
    assert {"cache", "memory", "disk of the cache"} <= set(result)
    assert (disk_rate(tmp_path / "a/b") or 0) > 0
    assert list(tmp_path.iterdir()) == []


def test_little_room_is_a_warning_and_less_is_bad():
    free = {100 * GIB: "ok", 5 * GIB: "warn", GIB // 2: "bad"}
    assert {one: room("cache", "", one, (GIB, 10 * GIB), "make room").level for one in free} == free


def test_each_accelerator_has_its_memory_and_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = {"automatic": torch.device("cpu"), "device_count": 1, "device_name": "A card", "total_bytes": 10 * GIB}
    known |= {"kind_of": SimpleNamespace(accelerator=True, streams=False), "free_bytes": 2 * GIB}
    for name, value in known.items():
        monkeypatch.setattr(storage, name, lambda *_, value=value: value)
    result = {one.name: one for one in check_storage(tmp_path)}
    assert (result["cpu:0"].message, result["cpu:0"].level) == ("A card: 2 GiB free of 10 GiB", "warn")
    assert result["copies to cpu:0"].message.endswith(" GB/s")


# The convolution


def in_float32(image, weight):
    """Never in a CPU's bf16, which may write past the end of its memory on the tiny map."""
    with torch.autocast("cpu", enabled=False):
        return conv3d(image, weight, padding=1)


def test_torchs_own_float32_is_sound():
    cells = probe_conv3d(CPU, conv=in_float32)
    wanted = [cell for cell in cells if cell.precision == "fp32"]
    assert len(wanted) == 4
    assert all(cell.sound for cell in wanted)


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
    cells = probe_conv3d(CPU, conv=_Halved.apply)
    fp32 = [cell for cell in cells if cell.precision == "fp32"]
    assert all(cell.forward_error < 1e-4 and cell.gradient_error == pytest.approx(0.5, abs=1e-3) for cell in fp32)
    assert "bad" in levels(check_conv3d(fp32)).values()


def test_a_probe_that_fails_is_told_and_not_raised():
    def broken(image, weight):
        raise RuntimeError("no such algorithm\nmore")

    cells = probe_conv3d(CPU, conv=broken)
    assert all(cell.failure == "no such algorithm" and not cell.sound for cell in cells)
    assert any("no such algorithm" in check.message for check in check_conv3d(cells))


def cell(**changed) -> Cell:
    plain = Cell(case="map", precision="fp32", channels_last=False, forward_error=0, gradient_error=0)
    return dataclasses.replace(plain, **changed)


def test_a_cell_that_is_not_a_number_is_bad():
    assert levels(check_conv3d([cell()])) == {"conv3d": "ok"}
    nan = cell(precision="bf16", forward_error=float("nan"))
    assert levels(check_conv3d([cell(), nan])) == {"bf16 contiguous, map": "bad"}


# The whole


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> machine.Environment:
    """Without the slow measurements."""
    monkeypatch.setattr(machine, "_WATCH_SECONDS", 0.02)
    monkeypatch.setattr(machine, "probe_conv3d", lambda device: (cell(), cell(gradient_error=float("nan"))))
    return examine(cache=tmp_path / "cache")


def test_an_examination_as_text_json_and_page(result: machine.Environment, tmp_path: Path):
    assert {check.area for check in result.checks} == set(AREAS)
    assert result.level == "bad"
    text = "\n".join(lines(result))
    assert all(check.message in text and check.remedy in text for check in result.checks)
    write_json(tmp_path / "doctor.json", result)
    content = json.loads((tmp_path / "doctor.json").read_text())
    assert content["cells"][1]["gradient_error"] is None
    page = write_page(result, tmp_path / "doctor.html").read_text()
    assert "Threads and affinity" in page
    assert result.checks[0].message in page


def test_the_verdict_counts(result: machine.Environment):
    well = Check(area="load", name="a", level="ok", message="")
    bad = Check(area="load", name="b", level="bad", message="", remedy="x")
    assert verdict(dataclasses.replace(result, checks=(well,))) == "All 1 checks are well."
    assert "first to look at: b" in verdict(dataclasses.replace(result, checks=(well, bad)))
    assert [check_load(others).level for others in (0.1, 1.5)] == ["ok", "warn"]
    assert [check_compiler(path).level for path in ("/usr/bin/g++", None)] == ["ok", "warn"]
