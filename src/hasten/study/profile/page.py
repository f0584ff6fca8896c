"""The profile's page: where a step's time goes, as cards, bars, a flame view and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hasten.observe.ranges import BACKWARD, CHECKPOINT, FORWARD, LOADING, OPTIMIZER, VALIDATION
from hasten.report.html import write_page
from hasten.report.model import Bar, Chart, Page, Section, Table
from hasten.report.words import short_duration
from hasten.study.profile.flame import flame_of, flame_svg
from hasten.study.profile.recording import STEP, ProfileRecording
from hasten.study.profile.tables import ALL, BESIDE, CALLS, CPU, GPU, KERNELS, OUTSIDE, TOTAL, Tables
from hasten.study.profile.take import Taken

_IN_STEP = (LOADING, FORWARD, BACKWARD, OPTIMIZER)
_ROWS = 20
_UNITS = {CPU: "Host (ms)", TOTAL: "Host, with all inside (ms)", GPU: "GPU (ms)"}
_WORDS = {KERNELS: "Kernels", CALLS: "Calls", **_UNITS}


def write_profile_page(
    out: Path, profile: Taken, recording: ProfileRecording, tables: Tables, *, reports: Sequence[str] = ("summary",)
) -> Path:
    """Write the page to the file `out`. Raises ValueError if it cannot be written."""
    page = Page(
        title="Profile of a training",
        verdict=verdict_of(profile, recording, tables),
        cards=_cards(profile, recording, tables),
        sections=tuple(_sections(profile, recording, tables, reports)),
    )
    return write_page(page, out)


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


def _sections(profile: Taken, recording: ProfileRecording, tables: Tables, reports: Sequence[str]) -> list[Section]:
    where = "The GPU's time by phase" if recording.on_device else "A step by phase"
    table = _table("Phase", {name: row for name, row in tables.phases.items() if row[CPU] or row[GPU]}, None)
    flame = flame_of(recording)
    sections = [
        Section(
            title="Phases",
            text=f"{where}, over {profile.steps} steps; the table is of all of them, "
            "the validation and the checkpoint.",
            bar=Bar(parts=tuple(_parts(recording, tables, profile.steps).items())),
            table=table,
            note=_note(recording, tables),
        ),
        Section(
            title="Flame view",
            text="What was called below what called it, as wide as it took on the training's thread; calls of one name "
            "under one caller are one box. Rest on a box for its name, time, share and calls.",
            charts=(
                Chart(flame_svg(flame, describe=f"Flame view of {profile.steps} steps: " + ", ".join(flame.children))),
            ),
        ),
    ]
    beside = "Ranges inside data loading and on threads beside the training."
    modules = "The network's forward by module, without the modules inside it."
    ops = "Own time first; the other column is with all that an operation calls."
    listings = (
        ("transforms", "Transforms", beside, tables.transforms),
        ("modules", "Modules", modules, tables.modules),
        ("ops", "Operations", ops, tables.ops),
        ("kernels", "Kernels", _kernel_words(recording), tables.kernels),
    )
    for name, title, text, rows in listings:
        if rows:
            head = None if name in reports else _ROWS
            more = f"The largest {_ROWS} of {len(rows)}." if head is not None and len(rows) > head else ""
            sections.append(Section(title=title, text=text, table=_table(title.rstrip("s"), rows, head), note=more))
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


def _table(first: str, rows: dict[str, dict[str, int]], head: int | None) -> Table:
    entries = list(rows.items())[:head]
    # A column without a number is no news on a machine without a GPU.
    keys = [key for key in (entries[0][1] if entries else {}) if key != GPU or any(row[GPU] for _, row in entries)]
    by = GPU if GPU in keys else CPU
    whole = sum(row[by] for row in rows.values()) or 1
    texts = tuple((name, *(_cell(key, row[key]) for key in keys), f"{row[by] / whole:.1%}") for name, row in entries)
    columns = (first, *(_WORDS[key] for key in keys), "Share")
    return Table(columns=columns, rows=texts, numeric=tuple(range(1, len(columns))))


def _cell(key: str, value: int) -> str:
    return f"{value / 1e6:,.2f}" if key in _UNITS else f"{value:,}"
