"""A profile as files: JSON and CSV tables, the trace, and the page with cards, a bar and tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.doctor.profile.tables import (
    ALL,
    BESIDE,
    CALLS,
    CPU,
    GPU,
    KERNELS,
    OUTSIDE,
    STEP,
    TOP,
    TOTAL,
    ProfileRecording,
    Tables,
    read,
    summary_of,
    tables_of,
)
from hasten.doctor.profile.take import Taken
from hasten.observe.ranges import BACKWARD, CHECKPOINT, FORWARD, LOADING, OPTIMIZER, VALIDATION
from hasten.observe.rundir import write_json, write_text, writing_to
from hasten.report.model import Bar, Page, Section, Table
from hasten.report.words import short_duration

FORMATS = ("json", "csv", "html")
TRACE = "trace.json"
PAGE = "profile.html"
_IN_STEP = (LOADING, FORWARD, BACKWARD, OPTIMIZER)
_UNITS = {CPU: "Host (ms)", TOTAL: "Host, with all inside (ms)", GPU: "GPU (ms)"}
_WORDS = {KERNELS: "Kernels", CALLS: "Calls", **_UNITS}


def choose(text: str) -> tuple[str, ...]:
    """The formats of "json,html", in the order of `FORMATS`. Raises ValueError for an unknown one, and for none."""
    requested = {name.strip() for name in text.split(",") if name.strip()}
    if not requested or not requested <= set(FORMATS):
        raise ValueError(f"--formats {text}: give some of {', '.join(FORMATS)}, with commas between")
    return tuple(name for name in FORMATS if name in requested)


def write(profile: Taken, out: Path, *, formats: Sequence[str] = FORMATS) -> Path:
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
    with writing_to(out):
        if "json" in formats:
            write_json(out / "summary.json", summary)
        if "csv" in formats:
            write_text(out / "summary.csv", _csv(summary))
        profile.profiler.export_chrome_trace(str(out / TRACE))
    if "html" in formats:
        from hasten.report.html import write_page

        write_page(page_of(profile, recording, tables), out / PAGE)
    return out


def _csv(summary: dict[str, Any]) -> str:
    """All tables of the summary one below the other, with the table's name in front."""
    sections = ("All Kernels", "Phases", "Transforms", "Modules", "Ops", "Kernels")
    into = io.StringIO()
    writer = csv.DictWriter(into, ["Table", "Name", KERNELS, CALLS, CPU, GPU, TOTAL], lineterminator="\n")
    writer.writeheader()
    for section in sections:
        writer.writerows({"Table": section, "Name": name, **row} for name, row in summary[section].items())
    return into.getvalue()


# The page


def page_of(profile: Taken, recording: ProfileRecording, tables: Tables) -> Page:
    return Page(
        title="Profile of a training",
        verdict=verdict_of(profile, recording, tables),
        cards=_cards(profile, recording, tables),
        sections=tuple(_sections(profile, recording, tables)),
    )


def verdict_of(profile: Taken, recording: ProfileRecording, tables: Tables) -> str:
    """One sentence: how long a step takes and what most of it is."""
    parts = _parts(recording, tables, profile.steps)
    whole = sum(parts.values()) or 1.0
    (first, most), *others = sorted(parts.items(), key=lambda item: -item[1])
    rest = ", ".join(f"{name} {value / whole:.0%}" for name, value in others if value >= 0.005 * whole)
    where = "the GPU's" if recording.on_device else "its"
    return (
        f"A step takes {short_duration(profile.plain_s)}. The largest part of {where} time, {most / whole:.0%}, goes "
        f"into {first}{f'; {rest}' if rest else ''}."
    )


def _parts(recording: ProfileRecording, tables: Tables, steps: int) -> dict[str, float]:
    """Seconds a step by phase: on the device where there is one, where the host only queues; and what is left."""
    column = GPU if recording.on_device else CPU
    parts = {name: 1e-9 * tables.phases[name][column] / steps for name in _IN_STEP if name in tables.phases}
    if not recording.on_device:
        remaining = sum(node.time for node in recording.main if node.name == STEP) * 1e-9 / steps - sum(parts.values())
        parts["between the phases"] = max(0.0, remaining)
    return parts


def _cards(profile: Taken, recording: ProfileRecording, tables: Tables) -> tuple[tuple[str, str, str], ...]:
    loading = tables.phases.get(LOADING, {}).get(CPU, 0) * 1e-9 / profile.steps
    kernels = tables.kinds[ALL]
    cards = [
        ("A step", short_duration(profile.plain_s), f"{short_duration(profile.step_s)} under the profiler"),
        ("Steps seen", str(profile.steps), f"and {profile.cases} cases of a validation"),
        ("Waiting for data", f"{loading / profile.step_s:.0%}" if profile.step_s else "-", "of a step, on the host"),
        ("Kernels", str(kernels[KERNELS]), f"different ones, {kernels[CALLS]} calls"),
    ]
    if recording.on_device:
        in_steps = sum(tables.phases.get(name, {}).get(GPU, 0) for name in _IN_STEP) * 1e-9 / profile.steps
        cards.append(("GPU at work", f"{min(1.0, in_steps / profile.step_s):.0%}", "of a step under the profiler"))
    return (*cards, ("Device", profile.device, f"torch {profile.setting.get('torch', '')}"))


def _sections(profile: Taken, recording: ProfileRecording, tables: Tables) -> list[Section]:
    where = "The GPU's time by phase" if recording.on_device else "A step by phase"
    table = _table("Phase", {name: row for name, row in tables.phases.items() if row[CPU] or row[GPU]})
    sections = [
        Section(
            title="Phases",
            text=f"{where}, over {profile.steps} steps; the table is of all of them, "
            "the validation and the checkpoint.",
            bar=Bar(parts=tuple(_parts(recording, tables, profile.steps).items())),
            table=table,
            note=_note(recording, tables),
        ),
    ]
    beside = "Ranges inside data loading and on threads beside the training."
    modules = "The network's forward by module, without the modules inside it."
    ops = "Own time first; the other column is with all that an operation calls."
    listings = (
        ("Transforms", beside, tables.transforms),
        ("Modules", modules, tables.modules),
        ("Operations", ops, tables.ops),
        ("Kernels", _kernel_words(recording), tables.kernels),
    )
    for title, text, rows in listings:
        if rows:
            more = f"The largest {TOP} of {len(rows)}." if len(rows) > TOP else ""
            sections.append(Section(title=title, text=text, table=_table(title.rstrip("s"), rows), note=more))
    settings = "\n".join(f"{name}: {value}" for name, value in profile.setting.items())
    sections.append(Section(title="Taken of", pre=settings, note=" ".join(profile.notes)))
    return sections


def _note(recording: ProfileRecording, tables: Tables) -> str:
    sentences = [f'"{OUTSIDE}" is what the training\'s thread did in none of them.']
    if BESIDE in tables.phases:
        sentences.append(
            f'"{BESIDE}" is the time of other threads, such as the one that makes batches or writes files.'
        )
    if recording.on_device:
        sentences.append("On the host a phase ends when its work is queued, not when the GPU has done it.")
    once = [name for name in (VALIDATION, CHECKPOINT) if name in tables.phases]
    if once:
        sentences.append(f"Once, and not in each step: {', '.join(once)}.")
    return " ".join(sentences)


def _kernel_words(recording: ProfileRecording) -> str:
    if recording.on_device:
        return "What ran on the GPU, copies and fills included; the host's time is of the operations that launched it."
    return "Operations of the CPU that leave no work to others, and regions that a compiler made of several."


def _table(first: str, rows: dict[str, dict[str, int]]) -> Table:
    entries = list(rows.items())[:TOP]
    # A column without a number is no news on a machine without a GPU.
    keys = [key for key in (entries[0][1] if entries else {}) if key != GPU or any(row[GPU] for _, row in entries)]
    by = GPU if GPU in keys else CPU
    whole = sum(row[by] for row in rows.values()) or 1
    texts = tuple((name, *(_cell(key, row[key]) for key in keys), f"{row[by] / whole:.1%}") for name, row in entries)
    columns = (first, *(_WORDS[key] for key in keys), "Share")
    return Table(columns=columns, rows=texts, numeric=tuple(range(1, len(columns))))


def _cell(key: str, value: int) -> str:
    return f"{value / 1e6:,.2f}" if key in _UNITS else f"{value:,}"
