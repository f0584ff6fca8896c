"""Profiles a few steps of a run, a validation and a checkpoint with torch's profiler: summary, trace and page."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.config.schema import RunConfig
from hasten.devices import device_name, kind_of
from hasten.doctor.profile.tables import ALL, CALLS, CPU, GPU, KERNELS, MODULE, STEP, TOTAL, summarise
from hasten.doctor.training import (
    RunComponents,
    collected_between_steps,
    current_device,
    pick_device,
    prepare_run,
    save_checkpoint,
    settings_of,
    synchronize,
    validate_some,
)
from hasten.feed.feed import Feed
from hasten.kernels.use import triton_as
from hasten.observe.clock import Clock
from hasten.observe.ranges import BACKWARD, FORWARD, LOADING, OPTIMIZER, Range
from hasten.observe.rundir import write_json, writing_to
from hasten.report.html import write_page
from hasten.report.model import Bar, Page, Section, Table
from hasten.report.words import plain, short_duration

SUMMARY, TRACE, PAGE = "summary.json", "trace.json", "profile.html"
_IN_STEP = (LOADING, FORWARD, BACKWARD, OPTIMIZER)
_TIMES = {CPU: "Host (ms)", TOTAL: "Host, with all inside (ms)", GPU: "GPU (ms)"}
_WORDS = {KERNELS: "Kernels", CALLS: "Calls", **_TIMES}
WARM_UP = 3
"""Steps before any that count: memory is allocated, libraries choose their algorithms."""
CASES = 2
"""Validation cases."""
_PLAIN = 5
"""Steps at most that are timed without the profiler, for what it costs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A profile and the setting it was recorded with."""

    profiler: Any
    """A finished `torch.profiler.profile`; None if Nsight recorded instead of torch's profiler."""
    steps: int
    cases: int
    plain_s: float
    """Median seconds of a step without the profiler."""
    step_s: float
    """Mean seconds of a step with it."""
    device: str
    settings: dict[str, Any]
    notes: tuple[str, ...]


def take(
    config: RunConfig, *, steps: int, cases: int = CASES, with_profiler: bool = True, clock: Clock | None = None
) -> Taken:
    """Put the run together as `train` does and profile `steps` steps, a validation of `cases` and a checkpoint.

    Only the cache is written to. clock: is told what begins, such as timing. Raises ValueError for what is wrong with
    the settings or the data.
    """
    assert steps >= 1
    notes = []
    if config.train.capture is not False:
        # A replayed graph is one launch: nothing in it has a phase or a name.
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, capture=False))
    with ExitStack() as stack:
        stack.enter_context(current_device(pick_device(config.train.device)))
        stack.enter_context(triton_as(config.train.fused_kernels))
        components = prepare_run(config, clock or Clock())
        if kind_of(components.planned.device).graphs:
            notes.append("Taken without a CUDA graph, which would hide the phases; training may use one and be faster.")
        compiled = components.accelerators["compiled network"].on
        if compiled:
            notes.append("The network is compiled, so that its modules have no separate ranges.")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hasten-profile-")))
        stack.enter_context(collected_between_steps())
        if not compiled:
            for network in {components.step.update.weights, components.validated}:
                stack.enter_context(_modules_marked(network))
        return _run_profiled(components, folder, steps, cases, with_profiler=with_profiler, notes=tuple(notes))


def _run_profiled(
    components: RunComponents, folder: Path, steps: int, cases: int, *, with_profiler: bool, notes: tuple[str, ...]
) -> Taken:
    device, plain = components.planned.device, min(steps, _PLAIN)
    total = components.planned.config.train.steps
    last = WARM_UP + plain + steps
    with closing(iter(Feed(components.program, last=last))) as feed:

        def run(first: int, count: int) -> list[float]:
            times = []
            for index in range(first, first + count):
                begin = time.perf_counter()
                with Range(STEP):
                    batch = next(feed)
                    components.step(batch["image"], batch["label"], min(index, total - 1))
                if not with_profiler or first < WARM_UP + plain:
                    synchronize(device)
                times.append(time.perf_counter() - begin)
            return times

        run(0, WARM_UP)
        seconds = run(WARM_UP, plain)
        profiler = _profiler(device) if with_profiler else nullcontext()
        with profiler:
            begin = time.perf_counter()
            run(WARM_UP + plain, steps)
            with Range("waiting for the device") if kind_of(device).accelerator else nullcontext():
                synchronize(device)
            elapsed = time.perf_counter() - begin
            validate_some(components, cases)
            save_checkpoint(components, folder)
            synchronize(device)
    name = device_name(device) if kind_of(device).accelerator else "CPU"
    return Taken(
        profiler=profiler if with_profiler else None,
        steps=steps,
        cases=min(cases, len(components.planned.validation)),
        plain_s=statistics.median(seconds),
        step_s=elapsed / steps,
        device=name,
        settings=settings_of(components),
        notes=notes,
    )


def _profiler(device: torch.device) -> Any:
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if kind_of(device).streams:
        activities.append(getattr(ProfilerActivity, device.type.upper()))
    with profile(activities=activities):
        torch.ones(1, device=device).sum()  # what starting the profiler for the first time takes is no part of a step
    # Batches may be made on a thread, which torch leaves out by default.
    return profile(activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True))


@contextmanager
def _modules_marked(network: nn.Module) -> Iterator[None]:
    """Inside the block every module of the network is a range by its path."""
    handles = []
    for name, module in network.named_modules():
        if not name:
            continue
        mark = Range(f"{MODULE}{name} ({type(module).__name__})")

        def begin(*_: object, mark: Range = mark) -> None:  # what a hook returns replaces the module's inputs
            mark.__enter__()

        def end(*_: object, mark: Range = mark) -> None:
            mark.__exit__(None, None, None)

        handles.append(module.register_forward_pre_hook(begin))
        handles.append(module.register_forward_hook(end, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# What is written


def write(profile: Taken, out: Path) -> Path:
    """Write summary, trace for Perfetto and page into the folder `out` and return it.

    Raises ValueError where the folder can't be written to.
    """
    summary = summarise(profile.profiler)
    run = {
        "Steps": profile.steps,
        "Validation Cases": profile.cases,
        "Step Time (ns)": round(1e9 * profile.step_s),
        "Step Time without Profiler (ns)": round(1e9 * profile.plain_s),
        "Device": profile.device,
        "Settings": profile.settings,
        "Notes": list(profile.notes),
    }
    with writing_to(out):
        write_json(out / SUMMARY, summary | {"Run": run})
        profile.profiler.export_chrome_trace(str(out / TRACE))
    write_page(_page(profile, summary), out / PAGE)
    return out


def _page(profile: Taken, summary: dict[str, Any]) -> Page:
    column = GPU if summary["Wall"][GPU] else CPU  # on a GPU's host a phase ends when its work is queued
    phases, kernels = summary["Phases"], summary["All Kernels"][ALL]
    parts = {name: 1e-9 * phases[name][column] / profile.steps for name in _IN_STEP if name in phases}
    first, share = max(parts.items(), key=lambda item: item[1], default=("nothing", 0.0))
    loading_s = phases.get(LOADING, {}).get(CPU, 0) * 1e-9 / profile.steps
    cards = (
        ("A step", short_duration(profile.plain_s), f"{short_duration(profile.step_s)} under the profiler"),
        ("Steps seen", str(profile.steps), f"and {profile.cases} cases of a validation"),
        ("Waiting for data", f"{loading_s / profile.step_s:.0%}", "of a step, on the host"),
        ("Kernels", str(kernels[KERNELS]), f"different ones, {kernels[CALLS]} calls"),
        ("Device", profile.device, f"torch {profile.settings['torch']}"),
    )
    listings = (
        ("Transforms", "Ranges other than phases and modules.", summary["Transforms"]),
        ("Modules", "The network's forward by module, with the modules inside it.", summary["Modules"]),
        ("Operations", "Own time, and with all that an operation calls.", summary["Ops"]),
        ("Kernels", "What ran on the GPU; on a CPU operations that do their work themselves.", summary["Kernels"]),
    )
    settings = "\n".join(f"{name.replace('_', ' ')}: {plain(value)}" for name, value in profile.settings.items())
    sections = (
        Section(
            title="Phases",
            text=f"A step by phase; the table is of {profile.steps} steps, the validation and the checkpoint.",
            bar=Bar(parts=tuple(parts.items())),
            table=_table("Phase", phases),
        ),
        *(Section(title, text, table=_table(title.rstrip("s"), rows)) for title, text, rows in listings if rows),
        Section(title="Taken of", pre=settings, note=" ".join(profile.notes)),
    )
    whole = sum(parts.values()) or 1.0
    sentence = f"A step takes {short_duration(profile.plain_s)}; its largest part, {share / whole:.0%}, is {first}."
    return Page(title="Profile of a training", verdict=sentence, cards=cards, sections=sections)


def _table(first: str, rows: dict[str, dict[str, int]]) -> Table:
    entries = list(rows.items())
    # A column without a number is no news on a machine without a GPU.
    keys = [key for key in entries[0][1] if key != GPU or any(row[GPU] for _, row in entries)]
    texts = tuple((name, *(_cell(key, row[key]) for key in keys)) for name, row in entries)
    columns = (first, *(_WORDS[key] for key in keys))
    return Table(columns=columns, rows=texts, numeric=tuple(range(1, len(columns))))


def _cell(key: str, value: int) -> str:
    return f"{value / 1e6:,.2f}" if key in _TIMES else f"{value:,}"
