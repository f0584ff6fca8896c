"""An examination as a table of text and as a page."""

from __future__ import annotations

from pathlib import Path

from hasten.report.html import write_page as write_html
from hasten.report.model import Page, Section, Table
from hasten.study.environment.check import AREAS
from hasten.study.environment.conv import Cell
from hasten.study.environment.doctor import Environment


def verdict(environment: Environment) -> str:
    """One sentence: how many checks are bad and how many are warnings."""
    bad = [check for check in environment.checks if check.level == "bad"]
    warn = [check for check in environment.checks if check.level == "warn"]
    if not bad and not warn:
        return f"All {len(environment.checks)} checks are well."
    parts = [f"{len(bad)} {'is' if len(bad) == 1 else 'are'} bad"] if bad else []
    if warn:
        parts.append(f"{len(warn)} {'costs' if len(warn) == 1 else 'cost'} time, or may")
    first = (bad or warn)[0]
    return f"Of {len(environment.checks)} checks {' and '.join(parts)}; first to look at: {first.name}."


def lines(environment: Environment) -> list[str]:
    """The table for a terminal: a title for each area, a line for each check, a remedy under those that need one."""
    output: list[str] = []
    for area, title in AREAS.items():
        checks = [check for check in environment.checks if check.area == area]
        if not checks:
            continue
        output.append(title)
        for check in checks:
            output.append(f"  {check.level:4}  {check.name:22}  {check.message}")
            if check.remedy:
                output.append(f"        {'':22}  -> {check.remedy}")
    return [*output, "", verdict(environment)]


def write_page(environment: Environment, out: Path) -> Path:
    """The HTML page. Raises ValueError if it can't be written."""
    facts, matmul = environment.facts, environment.rates.matmul or {}
    rates = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in matmul.items())
    levels = [check.level for check in environment.checks]
    cards = (
        ("Checks", f"{levels.count('ok')} ok", f"{levels.count('warn')} warn, {levels.count('bad')} bad"),
        ("Processor", f"{facts['cores_usable']} cores", str(facts["cpu"])),
        ("torch", environment.versions.torch, f"Python {environment.versions.python}"),
        ("Device", str(facts["device"]), rates),
    )
    wrong = sorted((each for each in environment.checks if each.level != "ok"), key=lambda each: each.level != "bad")
    rows = tuple((each.name, each.level, each.message, each.remedy) for each in wrong)
    remedies = Table(("Check", "Level", "What was found", "Remedy"), rows)
    sections = [Section("What to do", table=remedies)] if wrong else []
    for area, title in AREAS.items():
        checks = [check for check in environment.checks if check.area == area]
        if area == "conv3d":
            note = "Forward and backward of one layer. Errors are relative, against float64."
            sections.append(Section(title, table=_cells(environment.cells), note=note))
        elif checks:
            cells = tuple((each.name, each.level, each.message) for each in checks)
            sections.append(Section(title, table=Table(("Check", "Level", "What was found"), cells)))
    page = Page(title="Environment", verdict=verdict(environment), cards=cards, sections=tuple(sections))
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
