from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hasten import devices
from hasten.config.schema import TrainConfig
from hasten.devices import DeviceKind, kind_of
from hasten.distribute.world import World
from hasten.kernels import use
from hasten.runtime.device import pick_device
from hasten.runtime.variant import candidates, fitted_to_device

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hasten"
MPS = torch.device("mps")

EXEMPT = {
    "devices.py": "the layer itself",
    "cli/doctor.py": "the value of --for",
    "doctor/script": "what scripts of others say, and the probe in their process, which imports nothing of Hasten",
    "doctor/environment/versions.py": "NVIDIA's driver beside a torch that does not see it",
    "nnunet/trainers/nnUNetTrainerHasten.py": "nnU-Net's default argument",
    "observe/env.py": "must start without torch, and so without the layer; names of facts in env.json",
    "report/words.py": "spelling",
    "runtime/side_stream.py": "graphs are torch.cuda's; made where a device has `graphs`",
    "training/capture.py": "the type of such a graph",
    "prediction/model.py": "the type of such a graph",
    "runtime/variant.py": "compute capabilities, of a device that is `nvidia`",
    "kernels": "Triton kernels, where a device has `triton`",
}
"""Files and folders of src/hasten that may name CUDA, and why."""


def named(text: str) -> list[str]:
    """What names CUDA: strings, `is_cuda` and `torch.cuda`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch("cuda(:.*)?", node.value):
            found.append(f"{node.lineno}: {node.value!r}")
        elif isinstance(node, ast.Attribute) and (node.attr == "is_cuda" or ast.unparse(node) == "torch.cuda"):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_only_the_device_layer_asks_for_the_name_of_a_device() -> None:
    bad = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.endswith("_triton.py") or any(name == each or name.startswith(f"{each}/") for each in EXEMPT):
            continue
        bad += [f"{name}:{each}" for each in named(path.read_text(encoding="utf-8"))]
    assert not bad, bad


def test_what_names_cuda_is_found() -> None:
    text = "if device.type == 'cuda' or x.is_cuda:\n    torch.cuda.synchronize()\n    y = 'cuda:0'"
    assert len(named(text)) == 4


def test_a_type_that_is_not_known_has_nothing_but_float32() -> None:
    kind = kind_of(torch.device("hpu"))
    assert kind == DeviceKind()
    assert kind.accelerator
    assert candidates(torch.device("hpu"), TrainConfig()) == candidates(MPS, TrainConfig())


@pytest.mark.parametrize(
    ("name", "built", "message"),
    [
        ("mps", False, "has 0 MPS devices, and torch .* is not built for any; use auto or cpu"),
        ("mps", True, "has 0 MPS devices; use auto or cpu"),
        ("xpu:1", False, "has 0 XPU devices, and torch .* is not built for any; use auto or cpu"),
        ("rocm", False, r"use auto, cpu, cuda or cuda:N \(NVIDIA and AMD\), mps \(Apple\), xpu"),
        ("mps:one", False, "use auto, cpu, "),
    ],
)
def test_a_device_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, built: bool, message: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: MPS if built else None)
    with pytest.raises(ValueError, match=f"^train.device={name}: .*{message}"):
        pick_device(name)


def test_mps_is_taken_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    assert pick_device("mps") == MPS
    assert pick_device("auto") == torch.device("cpu")
    assert devices.others_here() == ["mps"]
    assert not caplog.messages
    with pytest.raises(ValueError, match="use mps:0, auto or cpu"):
        pick_device("mps:1")
    with pytest.raises(ValueError, match="several processes can't share a step there"):
        pick_device("mps", World(rank=0, size=2, local_rank=0, local_size=2))
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK")
    pick_device("mps")
    assert caplog.messages == [
        "mps: what torch lacks there is an error; set PYTORCH_ENABLE_MPS_FALLBACK=1 before torch is imported"
    ]


def test_what_a_device_lacks_is_replaced_and_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    given = TrainConfig(precision="bf16", channels_last=True)
    settings = fitted_to_device(given, MPS)
    assert (settings.precision, settings.channels_last) == ("fp32", False)
    assert len(caplog.messages) == 1
    assert fitted_to_device(given, torch.device("cuda")) is fitted_to_device(given, torch.device("cpu")) is given
    half = TrainConfig(precision="fp16", channels_last=False)
    assert fitted_to_device(half, MPS) is half
    assert len(caplog.messages) == 1


def test_each_device_is_offered_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(each) for each in candidates(MPS, TrainConfig())] == ["fp32"]
    there = [str(each) for each in candidates(torch.device("xpu"), TrainConfig())]
    assert there == ["fp32", "fp32 channels-last", "bf16", "bf16 channels-last"]
    # AMD's cards have capabilities of their own numbering: nothing measured on NVIDIA's is taken for granted.
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setitem(devices._KINDS, "cuda", runpy.run_path(devices.__file__)["_KINDS"]["cuda"])
    there = [str(each) for each in candidates(torch.device("cuda"), TrainConfig())]
    assert there[-1] == "bf16 channels-last fused"
    assert len(there) == 6
    assert devices.uuids(torch.device("cuda")) == []


@pytest.mark.parametrize("name", ["cpu", "mps", "xpu", "hpu", "meta"])
def test_batches_are_made_on_no_other_device(name: str) -> None:
    """Draws are float64 there."""
    assert devices.holds_cases(torch.device("cuda"))
    assert not devices.holds_cases(torch.device(name))


def test_a_gpu_that_fails_is_no_gpu_with_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.device) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    with pytest.raises(RuntimeError, match="CUDA error"):
        devices.free_bytes(torch.device("cuda", 0))


def test_looking_for_a_device_in_use_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked whether it is available, CUDA can't be used any more by processes that are forked later."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    for name in ("is_available", "device_count"):
        monkeypatch.setattr(torch.cuda, name, lambda: pytest.fail("asked"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert devices.accelerator_in_use() is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert devices.accelerator_in_use() == torch.device("cuda")


@pytest.mark.parametrize("name", ["mps", "xpu", "cpu", "hpu"])
def test_triton_is_tried_on_no_other_device(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(use, "_works_on", lambda _: True)
    assert use.triton_works(torch.device("cuda", 0))
    assert not use.triton_works(torch.device(name))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None or shutil.which("ninja") is None, reason="needs a compiler")
def test_a_stand_in_for_mps_feeds_trains_resumes_and_predicts(tmp_path: Path) -> None:
    """In a process of its own, as torch can't take a device back. It refuses float64 and pinned memory."""
    environment = {**os.environ, "PYTORCH_ENABLE_MPS_FALLBACK": "1", "HASTEN_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "tests.stand_in.work", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
