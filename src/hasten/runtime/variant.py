"""A precision and memory format of a step, and what was measured of several, which later runs read again."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter

from hasten.config.schema import TrainConfig
from hasten.devices import Precision, kind_of
from hasten.files import first_line
from hasten.observe.env import cpu_has_bf16
from hasten.observe.rundir import write_json

log = logging.getLogger(__name__)

_USUAL = "usually the fastest on such a device, with float32's loss and gradients; too short a run to compare others"

FAST_BF16 = (8, 0)
"""Lowest compute capability with matrix units for bf16."""
T = TypeVar("T", bound=Any)


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    precision: Precision
    channels_last: bool
    fused_kernels: bool = False
    """Which of Hasten's kernels run on a GPU (train.fused_kernels)."""

    def __str__(self) -> str:
        parts = (self.precision, "channels-last" * self.channels_last, "fused" * self.fused_kernels)
        return " ".join(part for part in parts if part)


def variant_of(train: TrainConfig) -> Variant:
    """The variant of a run whose precision and memory format are decided."""
    assert train.precision is not None
    assert train.channels_last is not None
    fused = train.fused_kernels or False
    return Variant(precision=train.precision, channels_last=train.channels_last, fused_kernels=fused)


def fitted_to_device(settings: T, device: torch.device) -> T:
    """The settings without a precision or memory format that the device lacks, and one line that says so.

    settings: a dataclass with `precision` and `channels_last`.
    """
    kind, lacks = kind_of(device), []
    if settings.precision not in (None, *kind.precisions):
        lacks.append(f"{settings.precision}: float32 is used")
        settings = replace(settings, precision="fp32")
    if settings.channels_last and not kind.channels_last:
        lacks.append("channels-last convolutions: channels-first ones are used")
        settings = replace(settings, channels_last=False)
    if lacks:
        log.warning("%s lacks %s", device, ", and ".join(lacks))
    return settings


def has_fast_bf16(device: torch.device) -> bool:
    """Whether a GPU is known to have fast matrix units for bf16; on other makers' a run compares."""
    return kind_of(device).nvidia and torch.cuda.get_device_capability(device) >= FAST_BF16


def candidates(device: torch.device, train: TrainConfig) -> list[Variant]:
    """The variants that `train` leaves open; the first one is the reference that the others are compared with.

    bf16 is left out on a processor that emulates it. Hasten's kernels go with channels-last: measured on an H100, they
    are slower without it, and it without them. On a GPU with fast bf16, these three were the fastest each time, so that
    float32 is there to validate the results only.
    """
    kind = kind_of(device)
    formats = [train.channels_last] if train.channels_last is not None else [False, True][: 1 + kind.channels_last]
    if device.type == "cpu":
        precisions: list[Precision] = ["fp32", "bf16"] if cpu_has_bf16() else ["fp32"]
        precisions = precisions if train.precision is None else [train.precision]
        return [Variant(precision=precision, channels_last=last) for precision in precisions for last in formats]
    asked = train.fused_kernels if kind.triton else False
    laid_out = [(last, last if asked is None else asked) for last in formats]
    unscaled: list[Precision] = [precision for precision in kind.precisions if precision != "fp16"]
    precisions = unscaled if train.precision is None else [train.precision]
    if train.precision is None and has_fast_bf16(device):
        reference = Variant(precision="fp32", channels_last=formats[0])
        last, fused = laid_out[-1]
        return [reference, Variant(precision="bf16", channels_last=last, fused_kernels=fused)]
    return [
        Variant(precision=precision, channels_last=last, fused_kernels=fused)
        for precision in precisions
        for last, fused in laid_out
    ]


@dataclass(frozen=True, slots=True)
class VariantTimes:
    """Median seconds of one forward and backward pass per variant, fastest first."""

    seconds: dict[str, float]
    variant: Variant
    """The one with the largest gain over the first that was allowed, or that one where no gain is certain."""
    excluded: tuple[str, ...] = ()
    """Variants whose loss or gradient was not that of the first one."""
    others: float = 0.0
    """Cores that other programs used meanwhile, where that makes the times doubtful."""
    rounds: int = 1
    """Most rounds; 0 where the variant was only checked, not compared, and 1 where there was no time for enough."""

    @property
    def pass_s(self) -> float:
        """Seconds of a pass of `variant`."""
        return self.seconds[str(self.variant)]


def keep(measured: VariantTimes, path: Path, machine: list[str | int]) -> None:
    """Write what was measured for later runs; a folder that can't be written is a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**asdict(measured), "machine": machine})
    except OSError as error:
        log.warning(
            "%s: what was measured can't be kept (%s); set cache.dir to a folder that can be written", path, error
        )


def read_kept(path: Path, allowed: list[Variant]) -> VariantTimes | None:
    """The measurement of an earlier run; None without one, or if the file is damaged."""
    try:
        measured = TypeAdapter(VariantTimes).validate_json(path.read_bytes())
        if measured.variant not in allowed or str(measured.variant) not in measured.seconds:
            raise ValueError("names no variant that is allowed, or none that was timed")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s: can't be used (%s) and is measured again", path, first_line(error))
        return None
    return measured


def explain(measured: VariantTimes) -> str:
    """One sentence for the report."""
    if not measured.rounds:
        return _USUAL
    chosen, first = str(measured.variant), next(iter(measured.seconds))
    what = f"{chosen} was fastest" if chosen == first else f"nothing was certainly faster than {chosen}"
    if measured.others:
        what = (
            f"{chosen} is usually the fastest; other programs used {measured.others:.1f} cores, so times decide nothing"
        )
    ranked = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in measured.seconds.items())
    out = f"; out for another loss or gradient: {', '.join(measured.excluded)}" if measured.excluded else ""
    return f"{what}; measured here, forward and backward of a small batch: {ranked}{out}"
