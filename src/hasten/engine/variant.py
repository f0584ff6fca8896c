"""A precision and memory format of a step, and what was measured of several, which later runs read again."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hasten.config.schema import TrainConfig
from hasten.observe.rundir import write_json

log = logging.getLogger(__name__)

_USUAL = "usually the fastest on such a device, with float32's loss and gradients; too short a run to compare others"

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    precision: Precision
    channels_last: bool
    fused_kernels: bool = False
    """Whether Hasten's kernels run on a GPU (train.fused_kernels)."""

    def __str__(self) -> str:
        parts = (self.precision, "channels-last" * self.channels_last, "fused" * self.fused_kernels)
        return " ".join(part for part in parts if part)


def variant_of(train: TrainConfig) -> Variant:
    """The variant of a run whose precision and memory format are decided."""
    assert train.precision is not None
    assert train.channels_last is not None
    return Variant(
        precision=train.precision, channels_last=train.channels_last, fused_kernels=bool(train.fused_kernels)
    )


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
    """Maximum number of rounds; 0 where the variant was only checked, and not compared with others."""

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
        content = json.loads(path.read_text(encoding="utf-8"))
        seconds = {str(name): float(value) for name, value in content["seconds"].items()}
        variant, excluded = Variant(**content["variant"]), tuple(content["excluded"])
        measured = VariantTimes(seconds, variant, excluded, rounds=int(content["rounds"]))
        if measured.variant not in allowed or str(measured.variant) not in seconds:
            raise ValueError("names no variant that is allowed, or none that was timed")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: can't be used (%s) and is measured again", path, error)
        return None
    return measured


def explain(measured: VariantTimes) -> str:
    """One sentence for the report."""
    if not measured.rounds:
        return _USUAL
    chosen, first = str(measured.variant), next(iter(measured.seconds))
    what = f"{chosen} was fastest" if chosen == first else f"nothing was certainly faster than {chosen}"
    ranked = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in measured.seconds.items())
    busy = f"; other programs used {measured.others:.1f} cores meanwhile, so that this holds for this run alone"
    ranked += busy if measured.others else ""
    out = f"; out for another loss or gradient: {', '.join(measured.excluded)}" if measured.excluded else ""
    return f"{what}; measured here, forward and backward of a small batch: {ranked}{out}"
