"""Versions that are known not to work well together: a table, and a pure function over it."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

import torch

from hasten.doctor.environment.check import Check, Level, check
from hasten.observe.env import cpu_has_bf16, driver_version, installed_version


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """What is installed; None is absent. A build tag stays in: 2.13.0+cpu."""

    python: str
    torch: str
    cuda: str | None = None
    """CUDA version of torch's build; None for a build without CUDA."""
    cudnn: str | None = None
    driver: str | None = None
    """Version of NVIDIA's driver."""
    monai: str | None = None
    gpu: bool = False
    """Whether torch sees a CUDA device."""
    cpu_bf16: bool = False
    """Whether the processor multiplies bf16 itself (AVX512-BF16 or AMX)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownConflict:
    """Versions that together are known to do harm."""

    name: str
    level: Level
    spans: dict[str, tuple[str, str]]
    """Versions by component, from the first on and below the second. All must hold."""
    problem: str
    remedy: str
    source: str
    on: str = ""
    """`cpu_bf16` or `gpu`: where that is what it happens on."""


RULES: tuple[KnownConflict, ...] = (
    KnownConflict(
        name="conv3d-bf16-wrong",
        level="bad",
        spans={"cudnn": ("9.8", "9.15")},
        problem="bf16 3-D convolutions can be wrong without an error",
        remedy="pip install 'nvidia-cudnn-cu12>=9.15' (-cu13 for CUDA 13), or train.precision=tf32",
        source="pytorch#163539",
    ),
    KnownConflict(
        name="conv3d-tf32-broken",
        level="warn",
        spans={"cudnn": ("9.10.2", "9.16")},
        problem="TF32 3-D convolutions have broken kernels",
        remedy="pip install 'nvidia-cudnn-cu12>=9.16' (-cu13 for CUDA 13), or leave train.precision=tf32 alone",
        source="pytorch PR#167024",
    ),
    KnownConflict(
        name="cpu-bf16-tiny-maps",
        level="warn",
        spans={"torch": ("2.13", "2.14")},
        on="cpu_bf16",
        problem="on this processor a bf16 convolution of a map smaller than its filter has undefined weight gradients",
        remedy="nothing to do in Hasten's runs; elsewhere keep those layers in float32: hasten.nets.surgery.keep_fp32",
        source="measured with torch 2.13 on AVX512-BF16",
    ),
)
"""Known bad pairs. A row is one claim with where it comes from; rows of one name are one fault in several versions."""


def check_versions(versions: Versions) -> tuple[Check, ...]:
    """A check for each installed component, and one for each rule of the table that applies to these versions."""
    checks = [
        check("versions", name, text)
        for name, text in (
            ("Python", versions.python),
            ("torch", f"{versions.torch}{f', CUDA {versions.cuda}' if versions.cuda else ', for the CPU'}"),
            ("cuDNN", versions.cudnn),
            ("NVIDIA driver", versions.driver),
            ("MONAI", versions.monai),
        )
        if text
    ]
    for rule in RULES:
        if (not rule.on or getattr(versions, rule.on)) and all(_within(versions, *span) for span in rule.spans.items()):
            installed = ", ".join(f"{what} {getattr(versions, what)}" for what in rule.spans)
            text = f"{installed}: {rule.problem} ({rule.source})"
            checks.append(check("versions", rule.name, text, rule.remedy, level=rule.level))
    return (*checks, *_blind(versions))


def _within(versions: Versions, what: str, span: tuple[str, str]) -> bool:
    version, (least, below) = getattr(versions, what), span
    return version is not None and numbers(least) <= numbers(version) < numbers(below)


def numbers(version: str) -> tuple[int, ...]:
    """(2, 13, 0) of `2.13.0+cpu`; a pre-release counts as its release."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _blind(versions: Versions) -> list[Check]:
    """A GPU with a driver that torch can't use."""
    if versions.driver is None or versions.gpu:
        return []
    if versions.cuda is None:
        text = f"the machine has an NVIDIA driver ({versions.driver}), but torch {versions.torch} is built for the CPU"
        remedy = "pip install torch from the index of your CUDA version: https://pytorch.org/get-started/locally"
    else:
        text = f"torch {versions.torch} sees no CUDA device, though there is a driver ({versions.driver})"
        remedy = "look at CUDA_VISIBLE_DEVICES and at what `python -c 'import torch; torch.cuda.init()'` says"
    return [check("versions", "gpu-unused", text, remedy, level="bad")]


def cudnn_text(number: int) -> str:
    """9.10.2 of torch's 91002, 8.9.2 of 8902."""
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def versions_here() -> Versions:
    """What this process runs with."""
    cudnn = torch.backends.cudnn.version() if torch.version.cuda and torch.backends.cudnn.is_available() else None
    return Versions(
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        cudnn=cudnn_text(cudnn) if cudnn else None,
        driver=driver_version(),
        monai=installed_version("monai"),
        gpu=torch.cuda.is_available(),
        cpu_bf16=cpu_has_bf16(),
    )
