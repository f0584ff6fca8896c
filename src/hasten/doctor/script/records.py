"""Typed access to the records that watched processes write."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hasten.doctor.finding import Finding, gain_of, ms

WARMUP = 3
"""First steps that aren't measured: compilation, start of workers, choice of algorithms."""
LEAST = 5
"""Measured steps from which a variation means something."""
ACCELERATED, LAUNCHES = 20, 0.005
"""How many times as fast as these cores a GPU works on a network, and the seconds that any step takes it."""


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """One process that trained."""

    rank: int = 0
    world: int = 1
    devices: Collection[str] = ("cpu",)
    """Device types on which the network's inputs lay."""
    assume_cuda: bool = False
    ended: str = "exit"
    """`steps` or `seconds` at the limit, `exit`, `failed` after an exception, or `running` if it was killed."""
    experiments: dict[str, Any] = field(default_factory=dict)
    """Results of `hasten_probe.experiments.run`."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The whole JSON."""

    @property
    def on_gpu(self) -> bool:
        return "cuda" in self.devices

    @property
    def cuda(self) -> bool:
        """Whether to judge it as a training on a GPU."""
        return self.assume_cuda or self.on_gpu

    @property
    def steps(self) -> int:
        """Number of steps that it made."""
        return len(self.raw.get("steps", ()))

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The steps after the warm-up: {"seconds", "parts", "cpu", "synced", ..}."""
        steps: list[dict[str, Any]] = self.raw.get("steps", [])
        return steps[min(WARMUP, max(1, len(steps) // 2)) :]

    @property
    def step_s(self) -> float:
        """Mean wall seconds of a measured step; 0 if none was."""
        return sum(step["seconds"] for step in self.measured) / max(1, len(self.measured))

    @property
    def train_s(self) -> float:
        """Seconds of a step without validations and checkpoints, which have findings of their own."""
        return max(0.0, self.step_s - self.part("validation") - self.part("checkpoint"))

    @property
    def rest_s(self) -> float:
        """Seconds of a step without the wait for its batch; a guess where it is judged for a GPU that isn't here."""
        network_s = sum(self.part(name) for name in ("forward", "backward", "optimizer"))
        saved_s = max(0.0, network_s - max(LAUNCHES, network_s / ACCELERATED)) if self.gpu_assumed else 0.0
        return max(0.0, self.train_s - self.part("wait") - saved_s)

    @property
    def gpu_assumed(self) -> bool:
        """Whether it is judged for a GPU that isn't here."""
        return self.assume_cuda and not self.on_gpu

    def part(self, name: str) -> float:
        """Mean seconds of a measured step that went into a part of `study.time_split.PARTS`."""
        return sum(step["parts"].get(name, 0.0) for step in self.measured) / max(1, len(self.measured))

    def per_step(self, count: float) -> float:
        """The mean per step of something counted since the end of the first step."""
        return count / max(1, self.steps - 1)

    def share(self, step: int) -> float:
        """Share for which counts what lies between two passes and happened before the end of a step."""
        steps = self.listed("steps")
        return float(steps[step].get("round", 1.0)) if step < len(steps) else 1.0

    def listed(self, name: str) -> list[dict[str, Any]]:
        return list(self.raw.get(name, ()))

    def listed_dict(self, name: str) -> dict[str, Any]:
        return dict(self.raw.get(name, {}))

    @property
    def training_loaders(self) -> list[dict[str, Any]]:
        """Loaders from which at least a quarter of the steps took their batch."""
        return [each for each in self.listed("loaders") if each["training"] >= max(1, self.steps // 4)]

    @property
    def root_site(self) -> str:
        """Code line that makes the network; "" if that isn't known."""
        return next((root["site"] for root in self.listed("roots") if root["site"]), "")

    def finding(
        self, found: Finding, site: str, *, cost_s: float | None = None, part: str = "", **more: Any
    ) -> Finding:
        """A finding at a place in the code. Its cure saves its whole cost unless `more` gives another gain.

        part: the part of a step that it shortens, by whose variation over the steps the gain has an interval.
        """
        more.setdefault("gain", None if cost_s is None else gain_of(cost_s, self.step_s))
        if part and more["gain"]:
            more["interval"] = self._interval(part, self.step_s * (1 - 1 / more["gain"]))
        return replace(found, where=place(site), cost_s=cost_s, **more)

    def _interval(self, part: str, saved_s: float) -> tuple[float, float] | None:
        """Interval of the gain by `saved_s` of a part: two standard errors of its share of the time, to each side."""
        steps, mean_s = self.measured, self.part(part)
        if len(steps) < LEAST or mean_s <= 0:
            return None
        pairs = [(step["parts"].get(part, 0.0), step["seconds"]) for step in steps]
        squares = sum((taken - mean_s / self.step_s * seconds) ** 2 for taken, seconds in pairs)
        error = 2 * (squares / (len(pairs) * (len(pairs) - 1))) ** 0.5 / mean_s
        low, high = (gain_of(saved_s * max(0.0, 1 + end * error), self.step_s) for end in (-1, 1))
        return low, high


def assumption(rest_s: float) -> str:
    """What goes behind the evidence of a note that rests on a GPU that isn't here. rest_s: as of the record."""
    return f"; if a GPU takes {ms(rest_s)} for the rest of a step"


def place(site: str) -> str:
    """A probe's `/path/train.py:31`, relative to the working folder if it lies below."""
    path, colon, line = site.rpartition(":")
    try:
        return f"{Path(path).relative_to(Path.cwd())}{colon}{line}"
    except ValueError:
        return site


def read_records(folder: Path) -> list[ProcessRecord]:
    """Records of the processes that trained, by rank; the longest of several with one rank, such as folds.

    Incomplete files of processes that were killed are ignored.
    """
    by_rank: dict[int, ProcessRecord] = {}
    for path in sorted(folder.glob("record-*.json")):
        try:
            text = path.read_text(encoding="utf-8")
            record = as_record(json.loads(text, parse_constant=lambda name: None))  # NaN and infinity
        except ValueError:
            continue
        if record.steps and (record.rank not in by_rank or record.steps > by_rank[record.rank].steps):
            by_rank[record.rank] = record
    return [by_rank[rank] for rank in sorted(by_rank)]


def as_record(raw: dict[str, Any]) -> ProcessRecord:
    """`raw` as the probe wrote it."""
    return ProcessRecord(**{each.name: raw[each.name] for each in fields(ProcessRecord) if raw.get(each.name)}, raw=raw)
