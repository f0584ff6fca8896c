"""Assembles a run as training does, writing only to the cache, and measures the cost of a cold cache."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from hasten.cache.build import is_prepared
from hasten.cases.read import read_image, read_label
from hasten.cases.types import Case
from hasten.config.schema import RunConfig
from hasten.doctor.environment.rates import read_rate
from hasten.doctor.training import RunComponents, RunPlan, arena_of, compose_run, plan_run, with_train
from hasten.observe.clock import Clock
from hasten.observe.cores import usable_cores
from hasten.prepare.case import prepare_case

_PROBED = 4
"""Cases that are read and prepared one by one to estimate the cost of a cold cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdCache:
    """Mean seconds of one thread for one case, and the total for the data set."""

    cases: int
    threads: int
    disk_s: float
    """Reading the bytes of its files past the page cache."""
    decode_s: float
    """Unpacking and checking them."""
    prepare_s: float
    """Cropping, resampling, scaling."""

    @property
    def read_total_s(self) -> float:
        """Seconds that reading adds to a run whose cache is cold."""
        return self.cases * (self.disk_s + self.decode_s) / self.threads

    @property
    def prepare_total_s(self) -> float:
        return self.cases * self.prepare_s / self.threads


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """A run that is ready for its first step."""

    components: RunComponents
    cold: ColdCache | None
    """None where the cache holds the run's cases already."""
    validation_cases: int
    """Validation cases of the whole run; `components` has fewer if only a part of the data was prepared."""
    whole: bool
    """Whether all cases were prepared."""
    once: dict[str, float]
    """Seconds before the first step that were spent here, by what."""


def assemble(config: RunConfig, folder: Path, *, seconds: float) -> Assembled:
    """Everything before the first step. folder: a temporary one, for the cases of a part of the data.

    Missing cases are prepared into the cache, as in training, if a few of them suggest that this takes at most a third
    of `seconds`; else a part of them goes into `folder`. Raises what planning and preparing raise.
    """
    clock = Clock()
    # Compiling the network takes a minute and is `hasten tune`'s to try, unless the run asks for it.
    train = dataclasses.replace(config.train, compile=bool(config.train.compile))
    with clock.span("plan"):
        planned = plan_run(dataclasses.replace(config, train=train))
    cases = len(planned.validation)
    cold = None
    if not is_prepared(planned.case_set, planned.config.prepare, planned.config.cache, planned.files):
        with clock.span("probe of the cold cache"):
            cold = probe_cold(planned)
    fits = cold is None or cold.read_total_s + cold.prepare_total_s <= seconds / 3
    if not fits:
        assert cold is not None
        planned = _part_of(planned, cold, folder, seconds / 3)
    with clock.span("cases"):
        arena = arena_of(planned)
    with clock.span("network"):
        if planned.config.train.capture is None and planned.device.type != "cuda":
            planned = with_train(planned, capture=False)
        torch.manual_seed(planned.config.train.seed)
        components = compose_run(planned, arena, clock)
    return Assembled(components=components, cold=cold, validation_cases=cases, whole=fits, once=clock.seconds)


def probe_cold(planned: RunPlan) -> ColdCache:
    """Read and prepare a few cases, spread over the data set, one after another."""
    cases = planned.case_set.cases
    probed = cases[:: max(1, len(cases) // _PROBED)][:_PROBED]
    timings = [_one(case, planned) for case in probed]
    disk, decode, prepare = (sum(column) / len(timings) for column in zip(*timings, strict=True))
    threads = planned.config.prepare.num_threads or usable_cores()
    return ColdCache(cases=len(cases), threads=threads, disk_s=disk, decode_s=decode, prepare_s=prepare)


def _one(case: Case, planned: RunPlan) -> tuple[float, float, float]:
    begin = time.perf_counter()
    for path in (*case.image, *([case.label] if case.label else [])):
        read_rate([path], seconds=math.inf)
    read = time.perf_counter()
    image = read_image(case)
    label = None if case.label is None else read_label(case, planned.case_set.labels, image, planned.case_set.ignore)
    decoded = time.perf_counter()
    prepare_case(image, label, id=case.id, spec=planned.config.prepare)
    return read - begin, decoded - read, time.perf_counter() - decoded


def _part_of(planned: RunPlan, cold: ColdCache, folder: Path, seconds: float) -> RunPlan:
    """The run on as many cases as can be prepared in this time, in a separate cache."""
    each = (cold.disk_s + cold.decode_s + cold.prepare_s) / cold.threads
    count = max(3, math.floor(seconds / max(each, 1e-6)))
    held_out = max(1, min(len(planned.validation), count // 4))
    train, validation = planned.train[: count - held_out], planned.validation[:held_out]
    ids = {case.id for case in (*train, *validation)}
    subset = tuple(case for case in planned.case_set.cases if case.id in ids)
    cache = dataclasses.replace(planned.config.cache, dir=str(folder / "cache"))
    return dataclasses.replace(
        planned,
        case_set=dataclasses.replace(planned.case_set, cases=subset),
        train=train,
        validation=validation,
        config=dataclasses.replace(planned.config, cache=cache),
    )
