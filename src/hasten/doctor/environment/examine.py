"""All checks of a machine, ordered so that they disturb each other least, as text and as a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from hasten.cache.key import cache_dir
from hasten.config.schema import CacheConfig
from hasten.doctor.environment.check import AREAS, Check, Level, check
from hasten.doctor.environment.conv import Cell, check_conv3d, probe_conv3d
from hasten.doctor.environment.storage import check_storage
from hasten.doctor.environment.threads import check_threads, threads_here
from hasten.doctor.environment.versions import check_versions, versions_here
from hasten.doctor.training import pick_device
from hasten.observe.cpu_load import BUSY, other_cores
from hasten.observe.env import cxx_compiler, environment, usual_compiler
from hasten.report.html import write_page as write_html
from hasten.report.model import Page, Section, Table

_WATCH_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Ready for JSON by `hasten.observe.rundir.write_json`."""

    checks: tuple[Check, ...]
    cells: tuple[Cell, ...]
    others: float
    """Cores that other programs used while nothing was measured."""
    facts: dict[str, Any]
    """Content of a run's env.json."""
    seconds: float

    @property
    def level(self) -> Level:
        """The worst of the checks."""
        return max((each.level for each in self.checks), key=get_args(Level).index)


def examine(*, cache: Path | None = None, echo: Callable[[str], None] | None = None) -> Environment:
    """Look at this machine, in some seconds. cache: the cache folder, the user's unless given."""
    report = echo or (lambda _: None)
    begin = time.perf_counter()
    device, folder = pick_device("auto"), cache or cache_dir(CacheConfig())
    report("looking at what else runs here")
    others = other_cores(_WATCH_SECONDS)
    report("checking 3-D convolutions, memory and disks")
    cells = probe_conv3d(device)
    checks = (
        *check_versions(versions_here()),
        check_compiler(cxx_compiler()),
        *check_conv3d(cells),
        *check_threads(threads_here(others)),
        *check_storage(folder),
        check_load(others),
    )
    return Environment(
        checks=checks,
        cells=cells,
        others=others,
        facts={**environment(), "device": str(device), "torch_threads": torch.get_num_threads()},
        seconds=time.perf_counter() - begin,
    )


def check_compiler(path: str | None) -> Check:
    """path: of the C++ compiler, which torch.compile calls on a CPU."""
    text = path or "none was found; runs are right without it, and some slower"
    return check("versions", "C++ compiler", text, "" if path else usual_compiler()[1])


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
    bad = [each for each in found.checks if each.level == "bad"]
    warn = [each for each in found.checks if each.level == "warn"]
    if not bad and not warn:
        return f"All {len(found.checks)} checks are well."
    first = (bad or warn)[0]
    return f"Of {len(found.checks)} checks {len(bad)} bad and {len(warn)} warnings; first to look at: {first.name}."


def lines(found: Environment) -> list[str]:
    """The table for a terminal: a title for each area, a line for each check, a remedy under those that need one."""
    output: list[str] = []
    for area, title in AREAS.items():
        output.append(title)
        for each in found.checks:
            if each.area == area:
                output.append(f"  {each.level:4}  {each.name:22}  {each.message}")
                output += [f"        {'':22}  -> {each.remedy}"] if each.remedy else []
    return [*output, "", verdict(found)]


def write_page(found: Environment, out: Path) -> Path:
    """The HTML page. Raises ValueError if it can't be written."""
    facts, levels = found.facts, [each.level for each in found.checks]
    cards = (
        ("Checks", f"{levels.count('ok')} ok", f"{levels.count('warn')} warn, {levels.count('bad')} bad"),
        ("Processor", f"{facts['cores_usable']} cores", str(facts["cpu"])),
        ("Device", str(facts["device"]), f"torch {torch.__version__}"),
    )
    wrong = sorted((each for each in found.checks if each.level != "ok"), key=lambda each: each.level != "bad")
    rows = tuple((each.name, each.level, each.message, each.remedy) for each in wrong)
    remedies = Table(("Check", "Level", "What was found", "Remedy"), rows)
    sections = [Section("What to do", table=remedies)] if wrong else []
    for area, title in AREAS.items():
        cells = tuple((each.name, each.level, each.message) for each in found.checks if each.area == area)
        sections.append(Section(title, table=Table(("Check", "Level", "What was found"), cells)))
    page = Page(title="Environment", verdict=verdict(found), cards=cards, sections=tuple(sections))
    return write_html(page, out)
