"""A profile as files: JSON, the trace, and the page with cards, a bar and tables."""

from __future__ import annotations

from pathlib import Path

from hasten.doctor.profile.tables import ALL, CALLS, CPU, GPU, KERNELS, TOP, TOTAL, Tables, summary_of, tables_of
from hasten.doctor.profile.take import Taken
from hasten.observe.ranges import BACKWARD, FORWARD, LOADING, OPTIMIZER
from hasten.observe.rundir import write_json, writing_to
from hasten.report.html import write_page
from hasten.report.model import Bar, Page, Section, Table
from hasten.report.words import short_duration

SUMMARY, TRACE, PAGE = "summary.json", "trace.json", "profile.html"
_IN_STEP = (LOADING, FORWARD, BACKWARD, OPTIMIZER)
_TIMES = {CPU: "Host (ms)", TOTAL: "Host, with all inside (ms)", GPU: "GPU (ms)"}
_WORDS = {KERNELS: "Kernels", CALLS: "Calls", **_TIMES}


def write(profile: Taken, out: Path) -> Path:
    """Write summary, trace for Perfetto and page into the folder `out` and return it.

    Raises ValueError where the folder can't be written to.
    """
    tables = tables_of(profile.profiler)
    run = {
        "Steps": profile.steps,
        "Validation Cases": profile.cases,
        "Step Time (ns)": round(1e9 * profile.step_s),
        "Step Time without Profiler (ns)": round(1e9 * profile.plain_s),
        "Device": profile.device,
        "Settings": profile.setting,
        "Notes": list(profile.notes),
    }
    with writing_to(out):
        write_json(out / SUMMARY, {**summary_of(tables), "Run": run})
        profile.profiler.export_chrome_trace(str(out / TRACE))
    write_page(_page(profile, tables), out / PAGE)
    return out


def _page(profile: Taken, tables: Tables) -> Page:
    column = GPU if tables.on_device else CPU  # on a GPU's host a phase ends when its work is queued
    parts = {name: 1e-9 * tables.phases[name][column] / profile.steps for name in _IN_STEP if name in tables.phases}
    first, share = max(parts.items(), key=lambda item: item[1], default=("nothing", 0.0))
    loading_s = tables.phases.get(LOADING, {}).get(CPU, 0) * 1e-9 / profile.steps
    cards = (
        ("A step", short_duration(profile.plain_s), f"{short_duration(profile.step_s)} under the profiler"),
        ("Steps seen", str(profile.steps), f"and {profile.cases} cases of a validation"),
        ("Waiting for data", f"{loading_s / profile.step_s:.0%}", "of a step, on the host"),
        ("Kernels", str(tables.kinds[ALL][KERNELS]), f"different ones, {tables.kinds[ALL][CALLS]} calls"),
        ("Device", profile.device, f"torch {profile.setting.get('torch', '')}"),
    )
    listings = (
        ("Transforms", "Ranges other than phases and modules.", tables.transforms),
        ("Modules", "The network's forward by module, with the modules inside it.", tables.modules),
        ("Operations", "Own time, and with all that an operation calls.", tables.ops),
        ("Kernels", "What ran on the GPU; on a CPU operations that do their work themselves.", tables.kernels),
    )
    settings = "\n".join(f"{name}: {value}" for name, value in profile.setting.items())
    sections = (
        Section(
            title="Phases",
            text=f"A step by phase; the table is of {profile.steps} steps, the validation and the checkpoint.",
            bar=Bar(parts=tuple(parts.items())),
            table=_table("Phase", tables.phases),
        ),
        *(Section(title, text, table=_table(title.rstrip("s"), rows)) for title, text, rows in listings if rows),
        Section(title="Taken of", pre=settings, note=" ".join(profile.notes)),
    )
    whole = sum(parts.values()) or 1.0
    sentence = f"A step takes {short_duration(profile.plain_s)}; its largest part, {share / whole:.0%}, is {first}."
    return Page(title="Profile of a training", verdict=sentence, cards=cards, sections=sections)


def _table(first: str, rows: dict[str, dict[str, int]]) -> Table:
    entries = list(rows.items())[:TOP]
    # A column without a number is no news on a machine without a GPU.
    keys = [key for key in entries[0][1] if key != GPU or any(row[GPU] for _, row in entries)]
    texts = tuple((name, *(_cell(key, row[key]) for key in keys)) for name, row in entries)
    columns = (first, *(_WORDS[key] for key in keys))
    return Table(columns=columns, rows=texts, numeric=tuple(range(1, len(columns))))


def _cell(key: str, value: int) -> str:
    return f"{value / 1e6:,.2f}" if key in _TIMES else f"{value:,}"
