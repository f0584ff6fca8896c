"""A profile as files: JSON and CSV tables, the trace, and the page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.study.folder import writing_to
from hasten.study.profile.recording import read
from hasten.study.profile.tables import CPU, GPU, summary_of, tables_of
from hasten.study.profile.take import Taken

REPORTS = ("summary", "phases", "transforms", "ops", "kernels")
"""`summary` has the totals and the head of every table; the others are one table each, whole."""
FORMATS = ("json", "csv", "html")
TRACE = "trace.json"
PAGE = "profile.html"


def choose(text: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Names from "a,b" in the order of `known`. Raises ValueError for an unknown name, and for none."""
    requested = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(requested - set(known))
    if unknown or not requested:
        what = f"{', '.join(unknown)} is none" if unknown else "names none"
        raise ValueError(f"{option}: {what} of {', '.join(known)}; give some of them, with commas between")
    return tuple(name for name in known if name in requested)


def write(
    profile: Taken, out: Path, *, reports: Sequence[str] = ("summary",), formats: Sequence[str] = FORMATS
) -> Path:
    """Write the profile into the folder `out` and return it. A trace for Perfetto is always among the files.

    Raises ValueError where the folder can't be written to.
    """
    recording = read(profile.profiler)
    tables = tables_of(recording)
    run = {
        "Steps": profile.steps,
        "Validation Cases": profile.cases,
        "Step Time (ns)": round(1e9 * profile.step_s),
        "Step Time without Profiler (ns)": round(1e9 * profile.plain_s),
        "Device": profile.device,
        "Settings": profile.setting,
        "Notes": list(profile.notes),
    }
    summary = {**summary_of(recording, tables), "Run": run}
    contents: dict[str, Any] = {
        "summary": summary,
        "phases": tables.phases,
        "transforms": tables.transforms,
        "ops": tables.ops,
        "kernels": {name: {"Kind": tables.kind_of[name], **row} for name, row in tables.kernels.items()},
    }
    with writing_to(out):
        for name in reports:
            if "json" in formats:
                (out / f"{name}.json").write_text(json.dumps(contents[name], indent=2) + "\n", encoding="utf-8")
            if "csv" in formats:
                rows = _below(summary) if name == "summary" else _rows(contents[name])
                (out / f"{name}.csv").write_text(_csv(rows), encoding="utf-8")
        profile.profiler.export_chrome_trace(str(out / TRACE))
    if "html" in formats:
        from hasten.study.profile.page import write_profile_page

        write_profile_page(out / PAGE, profile, recording, tables, reports=reports)
    return out


def _rows(table: dict[str, Any], **more: str) -> list[dict[str, Any]]:
    return [{**more, "Name": name, **row} for name, row in table.items()]


def _below(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """All tables of the summary one below the other, with the table's name in front."""
    sections = ("All Kernels", "Phases", "Transforms", "Modules", "Ops", "Kernels")
    return [row for section in sections for row in _rows(summary[section], Table=section)]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    into = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row) or ("Name", CPU, GPU)
    writer = csv.DictWriter(into, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return into.getvalue()
