"""Runs all checks of a machine, ordered so that they disturb each other least."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.cache.key import cache_dir
from hasten.config.schema import CacheConfig
from hasten.engine.run_plan import pick_device
from hasten.observe.cpu_load import BUSY, LoadMeter
from hasten.observe.env import environment
from hasten.study.environment.check import Check, Level, check, worst
from hasten.study.environment.compiler import check_compiler
from hasten.study.environment.conv import Cell, check_conv3d, probe_conv3d
from hasten.study.environment.homes import Homes, check_homes, homes_here
from hasten.study.environment.rates import Rates, check_rates, measure_rates
from hasten.study.environment.threads import check_threads, threads_here
from hasten.study.environment.versions import Versions, check_versions, versions_here

Echo = Callable[[str], None]
_WATCH_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Ready for JSON by `hasten.observe.rundir.write_json`."""

    checks: tuple[Check, ...]
    versions: Versions
    cells: tuple[Cell, ...]
    rates: Rates
    homes: Homes
    others: float
    """Cores that other programs used while nothing was measured."""
    facts: dict[str, Any]
    """Content of a run's env.json."""
    seconds: float

    @property
    def level(self) -> Level:
        return worst(self.checks)


def examine(
    *, data: Path | None = None, cache: Path | None = None, device: str = "auto", compiles: bool = False,
    echo: Echo | None = None,
) -> Environment:  # fmt: skip
    """Look at this machine, in about ten seconds.

    data: a data set whose disk is timed too, by reading; cache: the cache folder, the user's unless given; compiles:
    also compile a small function by torch.compile, which takes up to a minute more. Raises ValueError for a device that
    is not there and a `data` that is not.
    """
    if data is not None and not data.exists():
        raise ValueError(f"{data}: no such file or folder; name a data set, or leave it out")
    report = echo or (lambda _: None)
    begin = time.perf_counter()
    where = pick_device(device)
    folder = cache or cache_dir(CacheConfig())
    report("looking at what else runs here")
    meter = LoadMeter()
    time.sleep(_WATCH_SECONDS)
    others = meter.others()
    versions, homes = versions_here(), homes_here(folder)
    report("timing and checking 3-D convolutions")
    cells = probe_conv3d(where)
    report("measuring disk, gunzip, memory and multiplication")
    rates = measure_rates(where, cache=folder, data=data)
    report("trying the compiler")
    compiler = check_compiler(whole=compiles)
    checks = (
        *check_versions(versions),
        *compiler,
        *check_conv3d(cells, where.type),
        *check_rates(rates),
        *check_threads(threads_here(others)),
        *check_homes(homes),
        check_load(others),
    )
    return Environment(
        checks=checks, versions=versions, cells=cells, rates=rates, homes=homes, others=others,
        facts={**environment(), "device": str(where), "torch_threads": torch.get_num_threads()},
        seconds=time.perf_counter() - begin,
    )  # fmt: skip


def check_load(others: float) -> Check:
    """others: cores that other programs use."""
    text, remedy = f"other programs use {others:.1f} cores", ""
    if others > BUSY:
        text += ": times measured now, and switches that a run chooses by measuring, are doubtful"
        remedy = "end them (see `top`), then repeat"
    return check("load", "other programs", text, remedy)
