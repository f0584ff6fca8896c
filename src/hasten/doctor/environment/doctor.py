"""All checks of a machine, ordered so that they disturb each other least, as text and as a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.cache.key import cache_dir
from hasten.config.schema import CacheConfig
from hasten.doctor.environment.check import AREAS, Check, Level, check, worst
from hasten.doctor.environment.compiler import check_compiler
from hasten.doctor.environment.conv import Cell, check_conv3d, probe_conv3d
from hasten.doctor.environment.homes import Homes, check_homes, homes_here
from hasten.doctor.environment.rates import Rates, check_rates, measure_rates
from hasten.doctor.environment.threads import check_threads, threads_here
from hasten.doctor.environment.versions import Versions, check_versions, versions_here
from hasten.doctor.training import pick_device
from hasten.observe.cpu_load import BUSY, LoadMeter
from hasten.observe.env import environment
from hasten.report.html import write_page as write_html
from hasten.report.model import Page, Section, Table

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
    *,
    data: Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
    compiles: bool = False,
    echo: Echo | None = None,
) -> Environment:
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
        checks=checks,
        versions=versions,
        cells=cells,
        rates=rates,
        homes=homes,
        others=others,
        facts={**environment(), "device": str(where), "torch_threads": torch.get_num_threads()},
        seconds=time.perf_counter() - begin,
    )


def check_load(others: float) -> Check:
    """others: cores that other programs use."""
    text, remedy = f"other programs use {others:.1f} cores", ""
    if others > BUSY:
        text += ": times measured now, and switches that a run chooses by measuring, are doubtful"
        remedy = "end them (see `top`), then repeat"
    return check("load", "other programs", text, remedy)


# As text and as a page


def verdict(found: Environment) -> str:
    """One sentence: how many checks are bad and how many are warnings."""
    bad = [check for check in found.checks if check.level == "bad"]
    warn = [check for check in found.checks if check.level == "warn"]
    if not bad and not warn:
        return f"All {len(found.checks)} checks are well."
    parts = [f"{len(bad)} {'is' if len(bad) == 1 else 'are'} bad"] if bad else []
    if warn:
        parts.append(f"{len(warn)} {'costs' if len(warn) == 1 else 'cost'} time, or may")
    first = (bad or warn)[0]
    return f"Of {len(found.checks)} checks {' and '.join(parts)}; first to look at: {first.name}."


def lines(found: Environment) -> list[str]:
    """The table for a terminal: a title for each area, a line for each check, a remedy under those that need one."""
    output: list[str] = []
    for area, title in AREAS.items():
        checks = [each for each in found.checks if each.area == area]
        if not checks:
            continue
        output.append(title)
        for each in checks:
            output.append(f"  {each.level:4}  {each.name:22}  {each.message}")
            if each.remedy:
                output.append(f"        {'':22}  -> {each.remedy}")
    return [*output, "", verdict(found)]


def write_page(found: Environment, out: Path) -> Path:
    """The HTML page. Raises ValueError if it can't be written."""
    facts, matmul = found.facts, found.rates.matmul or {}
    rates = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in matmul.items())
    levels = [check.level for check in found.checks]
    cards = (
        ("Checks", f"{levels.count('ok')} ok", f"{levels.count('warn')} warn, {levels.count('bad')} bad"),
        ("Processor", f"{facts['cores_usable']} cores", str(facts["cpu"])),
        ("torch", found.versions.torch, f"Python {found.versions.python}"),
        ("Device", str(facts["device"]), rates),
    )
    wrong = sorted((each for each in found.checks if each.level != "ok"), key=lambda each: each.level != "bad")
    rows = tuple((each.name, each.level, each.message, each.remedy) for each in wrong)
    remedies = Table(("Check", "Level", "What was found", "Remedy"), rows)
    sections = [Section("What to do", table=remedies)] if wrong else []
    for area, title in AREAS.items():
        checks = [check for check in found.checks if check.area == area]
        if area == "conv3d":
            note = "Forward and backward of one layer. Errors are relative, against float64."
            sections.append(Section(title, table=_cells(found.cells), note=note))
        elif checks:
            cells = tuple((each.name, each.level, each.message) for each in checks)
            sections.append(Section(title, table=Table(("Check", "Level", "What was found"), cells)))
    page = Page(title="Environment", verdict=verdict(found), cards=cards, sections=tuple(sections))
    return write_html(page, out)


def _cells(cells: tuple[Cell, ...]) -> Table:
    rows = tuple(
        (
            f"{cell.case}, {cell.precision}, {cell.format}",
            cell.failure or f"{1e3 * cell.seconds:.2f}",
            f"{cell.forward_error:.1e}",
            f"{cell.gradient_error:.1e}",
            "sound" if cell.sound else "wrong",
        )
        for cell in cells
    )
    return Table(("Convolution", "ms", "error forward", "error of gradient", "verdict"), rows, (1, 2, 3))
