"""`write_report`: run directories as one self-contained HTML page."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from markupsafe import Markup

from hasten.evaluation.crossval import summarise
from hasten.observe.folds import is_cross_validation
from hasten.observe.monitor.alerts import sentences
from hasten.observe.monitor.recording import Gpu, Sample
from hasten.observe.notebook import PagePath
from hasten.observe.values import mapping
from hasten.report import words
from hasten.report.evaluation_page import write_crossval_page
from hasten.report.figures import NUM_COLORS, Line, color, is_wide, line_chart
from hasten.report.html import write_page
from hasten.report.model import Bar, Card, Chart, Key, Note, Page, Section, Table, badge
from hasten.report.read import Machine, Run, read_run
from hasten.report.slices import slices_section

log = logging.getLogger(__name__)


def write_report(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write one self-contained HTML page about run directories, or about a cross-validation.

    The file is replaced atomically, so a reader never sees half a page.

    Args:
        runs: run directories; the first is the one that the others are compared with. The folder of a cross-validation,
            alone, gives a page about its folds, and its cv.json is rewritten.
        out: the file to write, or a folder, in which it is called report.html.

    Returns:
        Its path.

    Raises:
        ValueError: if `runs` is empty or names a directory that no run wrote.

    Example:
        >>> page = hasten.write_report(["runs/first"], "first.html")
    """
    if not runs:
        raise ValueError("write_report: `runs` is empty; give at least one run directory")
    out = Path(out)
    if any(is_cross_validation(Path(folder)) for folder in runs):
        if len(runs) > 1:
            raise ValueError("write_report: a cross-validation has a separate page; name it alone, or name its folds")
        return PagePath(write_crossval_page(summarise(runs[0]), out / "report.html" if out.is_dir() else out))
    loaded = [read_run(Path(folder)) for folder in runs]
    for run in loaded:
        for note in run.notes:
            log.warning("%s: %s", run.folder, note)
    page = _run_page(loaded[0]) if len(loaded) == 1 else _comparison_page(loaded)
    return PagePath(write_page(page, out / "report.html" if out.is_dir() else out))


def _run_page(run: Run) -> Page:
    return Page(
        title=run.name,
        kind=KIND,
        badge=_status(run),
        verdict=words.verdict(run),
        cards=run_cards(run),
        sections=(Section("", warning=Note("To know when reading this", run.notes), sections=run_sections(run)),),
    )


_TONES = {"finished": "good", "target_reached": "good", "failed": "bad", "interrupted": "bad"}


def _status(run: Run) -> Markup:
    return badge(_words(run.status), _TONES.get(run.status, ""))


def _words(name: str) -> str:
    """A status, or a part of a run's time, for readers."""
    return {"time_up": "time is up", "read_plan": "read and plan"}.get(name, name.replace("_", " "))


KIND = "training report"
_COLUMNS = ("Run", "Time to {}", "Speed-up", "Best {}", "Per step", "Samples/s", "Waited for data", "Total")
_NOTE = (
    "Speed-ups are against the first run. Times count from the start of a run; where it was resumed, those of all its "
    "processes add up, without the pauses between them."
)


def _comparison_page(runs: list[Run]) -> Page:
    """Compare `runs`, two or more, with the first. Equal names are distinguished by their folders."""
    names = [run.name for run in runs]
    runs = [replace(run, name=f"{run.name} ({run.folder})") if names.count(run.name) > 1 else run for run in runs]
    threshold, metric = runs[0].target, words.common_metric(runs)
    if threshold is None:
        threshold = words.reached_by_all(run.scores for run in runs)
    goal = "target" if threshold is None else f"{metric} {words.threshold(threshold)}"
    times = [None if threshold is None else words.time_to(run, threshold) for run in runs]
    rows = tuple(
        (
            Markup("{}<br>{}").format(run.name, _status(run)),
            words.duration(time_s) if time_s is not None else "not reached",
            f"{times[0] / time_s:.2f}×" if times[0] and time_s else words.DASH,
            words.score(run.best_score),
            words.short_duration(step_seconds(run)),
            words.number(run.samples_per_s),
            words.share(run.wait_share),
            words.duration(run.total_s),
        )
        for run, time_s in zip(runs, times, strict=True)
    )
    columns = tuple(column.format(goal if "Time" in column else metric) for column in _COLUMNS)
    reached = [(time_s, run.name) for time_s, run in zip(times, runs, strict=True) if time_s is not None]
    verdict = f"No run reached the {goal}."
    if reached:
        verdict = f"{min(reached)[1]} reached {goal} first, after {words.duration(min(reached)[0])}."
    comparison = Section(
        "Comparison",
        warning=Note("Not of the same cases", _other_cases(runs)),
        table=Table(columns, rows, numeric=tuple(range(1, len(columns)))),
        note=_NOTE,
        sections=(Section("", charts=(_comparison_chart(runs, metric, threshold),)),),
    )
    notes = Note("To know when reading this", tuple(f"{run.name}: {note}" for run in runs for note in run.notes))
    sections = (comparison, Section("", warning=notes))
    return Page(title=f"{len(runs)} runs compared", kind=KIND, verdict=verdict, sections=sections)


def _comparison_chart(runs: list[Run], metric: str, threshold: float | None) -> Chart:
    keys = [Key(run.name, color(index)) for index, run in enumerate(runs)]
    if threshold is not None:
        keys.append(Key("compared at", "--muted", words.threshold(threshold), dashed=True))
    lines = [Line(points=run.scores, color=color(index), width=2.2) for index, run in enumerate(runs)]
    describe = f"Validations of {len(runs)} runs: {metric} over time"
    svg = line_chart(lines, id_prefix="comparison", describe=describe, level=threshold)
    return Chart(svg, f"Validations: {metric} over time", tuple(keys))


def _other_cases(runs: list[Run]) -> tuple[str, ...]:
    """Why the scores of the runs are not to be compared; empty if they are."""
    first, *others = runs
    data = mapping(first.settings.get("data"))
    notes = [
        f"{run.name} has another data.{name} than {first.name}, so that their scores are of other cases."
        for run in others
        for name, value in mapping(run.settings.get("data")).items()
        if name in ("source", "split") and data.get(name, value) != value
    ]
    shortened = [
        f"{run.name}: the validation is shortened to {mapping(run.accelerators['shorter validation']).get('reason')}."
        for run in runs
        if "shorter validation" in run.accelerators
    ]
    return (*notes, *shortened)


def step_seconds(run: Run) -> float | None:
    """Seconds of a step with its wait for data."""
    if not run.steps or "train" not in run.seconds:
        return None
    return (run.seconds["train"] + run.seconds.get("wait_for_data", 0.0)) / run.steps


PARTS = {
    "import": "--c4",
    "read_plan": "--c5",
    "prepare": "--c1",
    "tune": "--c7",
    "compile": "--c8",
    "train": "--c2",
    "wait_for_data": "--c6",
    "validate": "--c3",
    "checkpoint": "--ink",
}
"""Parts of a run's time in the order they are stacked, and their colours."""


def run_sections(run: Run) -> tuple[Section, ...]:
    """Everything but the key figures."""
    metric = words.metric(run).removeprefix("mean ")
    environment = yaml.safe_dump(run.environment, sort_keys=False, allow_unicode=True) if run.environment else ""
    sections = (
        Section(f"Loss and {metric}", charts=(_validations(run, metric), _loss(run))),
        _time(run),
        machine_section(run.machine),
        slices_section("Example slices", run.examples, run.class_names.values(), none="No slices were recorded."),
        _accelerators(run),
        _plan(run),
        _folded("Environment", "Versions and the machine", environment),
        _folded("Configuration", "run.yaml, resolved", run.config),
    )
    return tuple(section for section in sections if section is not None)


def run_cards(run: Run) -> tuple[Card, ...]:
    name, per_step = words.metric(run), step_seconds(run)
    at_step = f"at step {run.best_step:,}" if run.best_step is not None else ""
    cards = [Card(f"Best {name}", words.score(run.best_score), at_step)]
    if run.target is not None:
        reached = words.time_to(run, run.target)
        label = f"Time to {name} {words.threshold(run.target)}"
        if reached is None:
            cards.append(Card(label, "not reached", f"in {words.duration(run.total_s)}"))
        else:
            cards.append(Card(label, words.duration(reached), "from the start"))
    steps = words.DASH if run.steps is None else f"{run.steps:,}"
    total = "so far" if run.status == "in_progress" else ""
    if run.earlier_s:
        total = f"{words.duration(run.earlier_s)} of it before the run was resumed"
    cards += [
        Card("Total time", words.duration(run.total_s), total),
        Card("Steps", steps, f"{words.short_duration(per_step)} each" if per_step is not None else ""),
        Card("Throughput", words.number(run.samples_per_s), "samples per second"),
        Card("Waited for data", words.share(run.wait_share), "of the step time"),
    ]
    if run.cases:
        train, validation = run.cases.get("train"), run.cases.get("validation")
        others = f", {validation:,} held out" if validation is not None else ""
        cards.append(Card("Cases", words.DASH if train is None else f"{train:,}", f"for training{others}"))
    return tuple(cards)


def _loss(run: Run) -> Chart:
    points = [(record.time_s, record.loss) for record in run.train if record.loss is not None]
    if not points:
        return Chart("", "Training loss", note="No training loss was recorded.")
    losses = [loss for _, loss in points]
    line = Line(points=points, color="--c2")
    describe = f"Training loss over time, from {losses[0]:.3g} to {losses[-1]:.3g}"
    return Chart(line_chart([line], id_prefix="loss", describe=describe, log=is_wide(losses)), "Training loss")


def _validations(run: Run, metric: str) -> Chart:
    title = f"Validation {metric}"
    if not run.validations:
        return Chart("", title, note="No validation was recorded.")
    last = run.validations[-1]
    lines, keys = [], [Key("Mean", "--ink", words.score(last.score))]
    known = list(run.class_names.values())
    # Regions are not classes of the label map; they keep the order of the validation's record.
    scored = list(dict.fromkeys(name for record in run.validations for name in record.per_class))
    names = [name for name in known if name in scored] + [name for name in scored if name not in known]
    for position, name in enumerate(names):
        # The place in the label map, so that a class has one hue in the curves and on the slices.
        hue = color(known.index(name) if name in known else len(known) + position)
        points = [(record.time_s, record.per_class[name]) for record in run.validations if name in record.per_class]
        lines.append(Line(points=points, color=hue))
        keys.append(Key(name, hue, words.score(last.per_class.get(name))))
    lines.append(Line(points=run.scores, color="--ink", width=2.4))
    if run.target is not None:
        keys.append(Key("Target", "--muted", words.threshold(run.target), dashed=True))
    describe = f"Validation {metric} over time, last mean {last.score:.3f}"
    return Chart(line_chart(lines, id_prefix="dice", describe=describe, level=run.target), title, tuple(keys))


def _time(run: Run) -> Section:
    """The time by part."""
    title = "Where the time went"
    ordered = {**dict.fromkeys(PARTS, 0.0), **run.seconds}
    seconds = {name: value for name, value in ordered.items() if value > 0}
    if not seconds:
        return Section(title, note="The parts of the time are recorded when a run ends.")
    covered = sum(seconds.values())
    total = max(run.total_s or 0.0, covered)
    if total - covered > 0.001 * total:
        seconds["other"] = total - covered
    colors = tuple({**PARTS, "other": "--rest"}.get(name, "--muted") for name in seconds)
    bar = Bar(tuple((_words(name), value) for name, value in seconds.items()), colors=colors)
    return Section(title, bar=bar, note=f"Shares are of {words.duration(sum(seconds.values()))} in all.")


def _accelerators(run: Run) -> Section:
    rows = []
    for name, value in run.accelerators.items():
        detail = value if isinstance(value, dict) else {"on": value}
        on = detail.get("on")
        state = badge("not known") if not isinstance(on, bool) else badge("on", "good") if on else badge("off")
        rows.append((name, state, str(detail.get("reason") or "")))
    return _listing("Accelerators", ("Accelerator", "State", "Why"), tuple(rows))


def _plan(run: Run) -> Section:
    details = {name: entry if isinstance(entry, dict) else {"value": entry} for name, entry in run.decisions.items()}
    rows = tuple(
        (words.title(name.replace(".", ": ")), words.plain(each.get("value")), str(each.get("reason") or ""), name)
        for name, each in details.items()
    )
    return _listing("Decided from the data", ("What", "Value", "Reason", "Setting"), rows)


def _listing(title: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Section:
    return Section(title, table=Table(columns, rows)) if rows else Section(title, note="Not recorded.")


def _folded(title: str, about: str, text: str) -> Section:
    return Section(title, pre=text, folded=about) if text else Section(title, note="Not recorded.")


PERCENT = (0.0, 103.0)
"""Axis limits, with a margin so that a line at 100 is fully visible."""
GIB = 1024.0
"""MiB per GiB."""

Curves = dict[str, list[tuple[float, float]]]
"""(seconds since the start, value) by the name of what is drawn."""


def machine_section(machine: Machine | None) -> Section | None:
    """None where nothing was recorded."""
    if machine is None:
        return None
    ranks, first = machine.ranks, min(machine.ranks)
    host = {first: ranks[first]}  # every rank records it
    total = host[first][-1].host.ram_total
    of_all = f"all programs, of {total / GIB:.1f} GiB" if total else "all programs"
    memory = _curves_of(host, lambda sample: [(of_all, sample.host.ram_used)], GIB)
    memory |= _curves_of(ranks, lambda sample: [("this process", sample.host.rss)], GIB)
    steps = _curves_of(ranks, lambda sample: [("a step", sample.step_s)], 1e-3)
    cores = _curves_of(host, lambda sample: [("busy", sample.host.cpu)])

    def of_gpus(value: Callable[[Gpu], float | None], scale: float = 1.0) -> Curves:
        return _curves_of(ranks, lambda sample: [(f"GPU {gpu.index}", value(gpu)) for gpu in sample.gpus], scale)

    charts = (
        _chart("GPU utilisation (%)", of_gpus(lambda gpu: gpu.util), "gpu", PERCENT),
        _chart("GPU memory (GiB)", of_gpus(lambda gpu: gpu.used, GIB), "gpu-memory"),
        _chart("Power (W)", of_gpus(lambda gpu: gpu.power_w), "power"),
        _chart("Step time (ms)", steps, "step"),
        _chart("Processor, all cores (%)", cores, "cpu", PERCENT),
        _chart("Host memory (GiB)", memory, "memory"),
    )
    return Section(
        "The machine",
        warning=Note("To look at", tuple(sentences(machine.alerts))),
        charts=tuple(chart for chart in charts if chart is not None),
        note=" ".join(f"{remark[:1].upper()}{remark[1:]}." for remark in machine.remarks),
    )


def _chart(title: str, curves: Curves, id_: str, bounds: tuple[float, float | None] = (0, None)) -> Chart | None:
    """The curves, as many as there are colours, each with its mean; None where nothing was recorded."""
    drawn = [(name, points) for name, points in curves.items() if len(points) > 1][:NUM_COLORS]
    if not drawn:
        return None
    lines = [Line(points=points, color=color(place)) for place, (_, points) in enumerate(drawn, 1)]
    means = [words.number(statistics.fmean(value for _, value in points)) for _, points in drawn]
    keys = [Key(name, line.color, f"mean {mean}") for (name, _), line, mean in zip(drawn, lines, means, strict=True)]
    return Chart(line_chart(lines, id_prefix=id_, describe=f"{title} over time", bounds=bounds), title, tuple(keys))


def _curves_of(
    ranks: Mapping[int, Sequence[Sample]],
    readings: Callable[[Sample], Iterable[tuple[str, float | None]]],
    scale: float = 1.0,
) -> Curves:
    """What the samples say of each name, which includes the rank only if there are several."""
    curves: Curves = {}
    for rank, samples in ranks.items():
        for sample in samples:
            for name, value in readings(sample):
                if value is not None:
                    which = f"{name} (rank {rank})" if len(ranks) > 1 else name
                    curves.setdefault(which, []).append((sample.time, value / scale))
    return curves
