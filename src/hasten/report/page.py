"""Training reports: run directories as one self-contained HTML page, each by itself and all compared with the first."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from hasten.engine.crossval import summarise
from hasten.observe.folds import is_cross_validation
from hasten.observe.notebook import PagePath
from hasten.observe.values import entries, mapping
from hasten.report import words
from hasten.report.crossval_page import write_crossval_page
from hasten.report.figures import Line, color, line_chart
from hasten.report.html import write_page
from hasten.report.machine import machine_section
from hasten.report.model import Bar, Card, Chart, Key, Note, Page, Section, Table, badge
from hasten.report.read import Run, read_run
from hasten.report.slices import DIFFERENCE_KEYS, class_keys, slice_of, slices_note

KIND = "training report"
_NOTE = (
    "Speed-ups are against the first run. An epoch is as many samples as there are training cases. Times count from "
    "the start of a run; where it was resumed, those of all its processes add up, without the pauses between them."
)


def comparison_page(runs: list[Run], sections: list[Section]) -> Page:
    """Compare `runs` (two or more, names distinct) with the first. sections: one about each run, `run-1` first."""
    threshold, metric = _threshold(runs), words.common_metric(runs)
    times = [None if threshold is None else words.time_to(run, threshold) for run in runs]
    column = f"Time to {metric} {words.threshold(threshold)}" if threshold is not None else "Time to target"
    columns = (
        "Run", column, "Speed-up in time", f"Best {metric}", "Per step", "Per epoch", "Samples/s",
        "Speed-up in samples/s", "Waited for data", "Total",
    )  # fmt: skip
    rows = tuple(
        (
            Markup('<a href="#run-{}">{}</a><br>{}').format(
                index, run.name, badge(words.STATUS.get(run.status, run.status))
            ),
            words.duration(time_s) if time_s is not None else "not reached",
            _ratio(times[0], time_s),
            words.score(run.best_score),
            words.short_duration(step_seconds(run)),
            words.short_duration(_epoch_seconds(run)),
            words.number(run.samples_per_s),
            _ratio(run.samples_per_s, runs[0].samples_per_s),
            words.share(run.wait_share),
            words.duration(run.total_s),
        )
        for index, (run, time_s) in enumerate(zip(runs, times, strict=True), start=1)
    )
    table = Table(columns, rows, numeric=tuple(range(1, len(columns))))
    chart = Section("", charts=(_chart(runs, metric, threshold),))
    warning = Note("Not of the same cases", _other_cases(runs))
    comparison = Section("Comparison", warning=warning, table=table, note=_NOTE, sections=(chart,), id="comparison")
    return Page(
        title=f"{len(runs)} runs compared",
        kind=KIND,
        verdict=_verdict(runs, times, threshold),
        cards=tuple(_cards(runs, times, threshold)),
        sections=(comparison, *sections),
    )


def _chart(runs: list[Run], metric: str, threshold: float | None) -> Chart:
    keys = [Key(run.name, color(index)) for index, run in enumerate(runs)]
    if threshold is not None:
        keys.append(Key("compared at", "--muted", words.threshold(threshold), dashed=True))
    if all(len(run.validations) < 2 for run in runs):
        return Chart("", keys=tuple(keys))
    lines = [
        Line(
            x=[record.time_s for record in run.validations],
            y=[record.score for record in run.validations],
            color=color(index),
            width=2.2,
        )
        for index, run in enumerate(runs)
    ]
    describe = f"Validations of {len(runs)} runs: {metric} over time"
    svg = line_chart(lines, id_prefix="comparison", describe=describe, level=threshold)
    return Chart(svg, f"Validations: {metric} over time", tuple(keys))


def _other_cases(runs: list[Run]) -> tuple[str, ...]:
    """Why the scores of the runs are not to be compared; empty if they are."""
    first, *others = runs
    notes = [
        f"{run.name} has another data.{name} than {first.name}, so that their scores are of other cases."
        for run in others
        for name in ("source", "split")
        if name in run.data and name in first.data and run.data[name] != first.data[name]
    ]
    shortened = [
        f"{run.name}: the validation is shortened to {mapping(run.engaged['shorter validation']).get('why')}."
        for run in runs
        if "shorter validation" in run.engaged
    ]
    return (*notes, *shortened)


def step_seconds(run: Run) -> float | None:
    """Seconds of a step with its wait for data."""
    if not run.steps or "train" not in run.seconds:
        return None
    return (run.seconds["train"] + run.seconds.get("wait_for_data", 0.0)) / run.steps


def _epoch_seconds(run: Run) -> float | None:
    """Seconds for as many samples as there are training cases."""
    cases = run.cases.get("train")
    return cases / run.samples_per_s if cases and run.samples_per_s else None


def _threshold(runs: list[Run]) -> float | None:
    """The first run's target, or the highest score, in hundredths, that every validated run reached."""
    if runs[0].target is not None:
        return runs[0].target
    tops = [max(record.score for record in run.validations) for run in runs if run.validations]
    return math.floor(min(tops) * 100 + 1e-9) / 100 if tops else None


def _ratio(numerator: float | None, denominator: float | None) -> str:
    return f"{numerator / denominator:.2f}×" if numerator and denominator else words.DASH


def _cards(runs: list[Run], times: list[float | None], threshold: float | None) -> list[Card]:
    """The best run by each key figure."""
    cards = []
    fastest = _extreme(runs, times, sign=-1)
    if fastest is not None and threshold is not None:
        label = f"Fastest to {words.common_metric(runs)} {words.threshold(threshold)}"
        cards.append(Card(label, words.duration(fastest[1]), fastest[0].name))
    best = _extreme(runs, [run.best_score for run in runs])
    if best is not None:
        cards.append(Card(f"Best {words.common_metric(runs)}", words.score(best[1]), best[0].name))
    throughput = _extreme(runs, [run.samples_per_s for run in runs])
    if throughput is not None:
        cards.append(Card("Highest throughput", f"{words.number(throughput[1])} samples/s", throughput[0].name))
    return cards


def _extreme(runs: list[Run], values: list[float | None], *, sign: int = 1) -> tuple[Run, float] | None:
    """The run with the largest (sign 1) or smallest (sign -1) value, the earlier of equals; None if there is none."""
    known = [(run, value) for run, value in zip(runs, values, strict=True) if value is not None]
    return max(known, key=lambda pair: sign * pair[1], default=None)


def _verdict(runs: list[Run], times: list[float | None], threshold: float | None) -> str:
    parts = []
    fastest = _extreme(runs, times, sign=-1)
    if fastest is not None and threshold is not None:
        run, time_s = fastest
        goal = f"{words.common_metric(runs)} {words.threshold(threshold)}"
        text = f"{run.name} reached {goal} first, after {words.duration(time_s)}"
        first = times[0]
        if first is None:
            text += f"; {runs[0].name} did not reach it"
        elif run is not runs[0] and time_s > 0:
            text += f", {first / time_s:.1f} times as fast as {runs[0].name} ({words.duration(first)})"
        parts.append(text)
    best = _extreme(runs, [run.best_score for run in runs])
    if best is not None:
        parts.append(f"{'best' if parts else 'Best'} {words.common_metric(runs)} {best[1]:.3f} by {best[0].name}")
    return ("; ".join(parts) or "No run was validated") + "."


PARTS = {
    "import": ("import", "--c4"),
    "read_plan": ("read and plan", "--c5"),
    "prepare": ("prepare", "--c1"),
    "tune": ("tune", "--c7"),
    "compile": ("compile", "--c8"),
    "train": ("train", "--c2"),
    "wait_for_data": ("wait for data", "--c6"),
    "validate": ("validate", "--c3"),
    "checkpoint": ("checkpoint", "--ink"),
}
"""Parts of a run's time in the order they are stacked: their words and their colours."""
_TONES = {"finished": "good", "target_reached": "good", "failed": "bad", "interrupted": "bad"}


def status_badge(run: Run) -> str:
    return badge(words.STATUS.get(run.status, run.status), _TONES.get(run.status, ""))


def run_sections(run: Run, id_: str, *, folded: bool = False) -> tuple[Section, ...]:
    """Everything but the key figures. id_: of the run on the page. folded: hide the long table of decisions."""
    sections = (
        _curves(run, id_), _time(run, id_), machine_section(run.machine, f"{id_}-machine"), _slices(run, id_),
        _engaged(run, id_), _augmentation(run, id_), _plan(run, id_, folded), _environment(run, id_), _config(run, id_),
    )  # fmt: skip
    return tuple(section for section in sections if section is not None)


def run_cards(run: Run) -> tuple[Card, ...]:
    name, per_step = words.metric(run), step_seconds(run)
    at_step = f"at step {run.best_step:,}" if run.best_step is not None else ""
    cards = [Card(f"Best {name}", words.score(run.best_score), at_step)]
    if run.own_grid is not None:
        cards.append(Card(f"{name[0].upper()}{name[1:]} on the images' own voxels", words.score(run.own_grid)))
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


def _curves(run: Run, id_: str) -> Section:
    metric = words.metric(run).removeprefix("mean ")
    charts = (_validations(run, id_, metric), _loss(run, id_))
    return Section(f"Loss and {metric}", charts=charts, id=f"{id_}-curves")


def _loss(run: Run, id_: str) -> Chart:
    points = [(record.time_s, record.loss) for record in run.train if record.loss is not None]
    if not points:
        return Chart("", "Training loss", note="No training loss was recorded.")
    losses = [loss for _, loss in points]
    if len(points) == 1:
        return Chart("", "Training loss", note=_so_far(f"training loss: {losses[0]:.3g}"))
    line = Line(x=[time_s for time_s, _ in points], y=losses, color="--c2")
    log = min(losses) > 0 and max(losses) > 20 * min(losses)
    describe = f"Training loss over time, from {losses[0]:.3g} to {losses[-1]:.3g}"
    return Chart(line_chart([line], id_prefix=f"{id_}-loss", describe=describe, log=log), "Training loss")


def _so_far(what: str) -> str:
    """A sentence in place of a chart with a single point."""
    return f"One {what} so far; the curve begins with the second."


def _validations(run: Run, id_: str, metric: str) -> Chart:
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
        lines.append(Line(x=[time_s for time_s, _ in points], y=[score for _, score in points], color=hue))
        keys.append(Key(name, hue, words.score(last.per_class.get(name))))
    times = [record.time_s for record in run.validations]
    lines.append(Line(x=times, y=[record.score for record in run.validations], color="--ink", width=2.4))
    if run.target is not None:
        keys.append(Key("Target", "--muted", words.threshold(run.target), dashed=True))
    reached = [f"{words.threshold(score)} after {words.duration(time_s)}" for score, time_s in run.time_to.items()]
    note = f"Mean {metric} first reached: {'; '.join(reached)}." if reached else ""
    if len(run.validations) == 1:
        return Chart("", title, tuple(keys), f"{_so_far('validation')} {note}".strip())
    describe = f"Validation {metric} over time, last mean {last.score:.3f}"
    svg = line_chart(lines, id_prefix=f"{id_}-dice", describe=describe, level=run.target)
    return Chart(svg, title, tuple(keys), note)


def _time(run: Run, id_: str) -> Section:
    """The time by part, and a warning if the recorded parts add up to more than the total."""
    title, section_id = "Where the time went", f"{id_}-time"
    seconds = {name: value for name, value in run.seconds.items() if value > 0}
    rows = [(*PARTS[name], seconds[name]) for name in PARTS if name in seconds]
    rows += [(name.replace("_", " "), "--muted", value) for name, value in seconds.items() if name not in PARTS]
    if not rows:
        return Section(title, note="The parts of the time are recorded when a run ends.", id=section_id)
    covered = sum(value for _, _, value in rows)
    total = max(run.total_s or 0.0, covered)
    warning = None
    if run.total_s is not None and covered > 1.01 * run.total_s:
        both = f"{words.duration(covered)}, more than the {words.duration(run.total_s)} in all"
        warning = Note("", (f"The parts add up to {both}.",))
    if total - covered > 0.001 * total:
        rows.append(("other", "--rest", total - covered))
    total = sum(value for _, _, value in rows)
    return Section(
        title,
        bar=Bar(tuple((name, value) for name, _, value in rows), colors=tuple(hue for _, hue, _ in rows)),
        note=f"Shares are of {words.duration(total)} in all. {_step_time(run)}".strip(),
        warning=warning,
        id=section_id,
    )


def _step_time(run: Run) -> str:
    """What of the bar is the step time, of which the page gives the share that waited for data."""
    if run.wait_share is None or not run.seconds.get("wait_for_data"):
        return ""
    return f"Train and wait for data make up the step time, of which waiting is {words.share(run.wait_share)}."


def _slices(run: Run, id_: str) -> Section:
    return Section(
        "Example slices",
        slices=tuple(map(slice_of, run.examples)),
        keys=(*class_keys(run.class_names.values()), *DIFFERENCE_KEYS),
        note=slices_note(run.examples) if run.examples else "No example slices were recorded.",
        id=f"{id_}-slices",
    )


def _engaged(run: Run, id_: str) -> Section:
    rows = []
    for name, value in run.engaged.items():
        detail = value if isinstance(value, dict) else {"on": value}
        on = detail.get("on")
        state = badge("not known") if not isinstance(on, bool) else badge("on", "good") if on else badge("off")
        rows.append((name, state, _text(detail, "why")))
    return _listing("What engaged", ("Accelerator", "State", "Why"), tuple(rows), f"{id_}-engaged")


def _augmentation(run: Run, id_: str) -> Section | None:
    steps = [mapping(entry) for entry in run.augmentation]
    rows = []
    for number, step in enumerate(steps, 1):
        name, does = words.operations(_text(step, "name"), [str(op) for op in entries(step.get("ops"))])
        rows.append((f"{number}. {name}", does, _text(step, "how"), _text(step, "why")))
    columns = ("Step", "What it does", "Runs", "Why")
    return _listing("Augmentation", columns, tuple(rows), f"{id_}-augmentation") if rows else None


def _plan(run: Run, id_: str, folded: bool) -> Section:
    details = {name: entry if isinstance(entry, dict) else {"value": entry} for name, entry in run.decisions.items()}
    rows = tuple(
        (words.title(name.replace(".", ": ")), words.plain(each.get("value")), _text(each, "reason"), name)
        for name, each in details.items()
    )
    summary = f"{len(rows)} settings" if folded else ""
    return _listing("Decided from the data", ("What", "Value", "Reason", "Setting"), rows, f"{id_}-plan", summary)


def _text(fields: dict[str, Any], name: str) -> str:
    return str(fields.get(name) or "")


def _environment(run: Run, id_: str) -> Section:
    rows = words.environment(run.environment)
    return _listing("Environment", ("Name", "Value"), rows, f"{id_}-environment", "Versions and the machine")


def _config(run: Run, id_: str) -> Section:
    folded, note = ("run.yaml, resolved", "") if run.config else ("", "Not recorded.")
    return Section("Configuration", pre=run.config, folded=folded, note=note, id=f"{id_}-config")


def _listing(
    title: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], id_: str, folded: str = ""
) -> Section:
    if not rows:
        return Section(title, note="Not recorded.", id=id_)
    return Section(title, table=Table(columns, rows), folded=folded, id=id_)


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
    loaded = _distinct([read_run(Path(folder)) for folder in runs])
    for run in loaded:
        for note in run.notes:
            log.warning("%s: %s", run.folder, note)
    return PagePath(write_page(_page(loaded), out / "report.html" if out.is_dir() else out))


def _page(runs: list[Run]) -> Page:
    sections = [
        Section(
            run.name,
            badge=status_badge(run),
            text=words.verdict(run),
            cards=run_cards(run),
            warning=Note("To know when reading this", run.notes),
            sections=run_sections(run, f"run-{number}", folded=len(runs) > 1),
            id=f"run-{number}",
        )
        for number, run in enumerate(runs, start=1)
    ]
    if len(runs) > 1:
        return comparison_page(runs, sections)
    (one,) = sections
    rest = replace(one, title="", badge="", text="", cards=())
    return Page(title=one.title, kind=KIND, badge=one.badge, verdict=one.text, cards=one.cards, sections=(rest,))


def _distinct(runs: list[Run]) -> list[Run]:
    """Names for the runs: equal names are distinguished by their folders, and by position if those are equal too."""

    def renamed(runs: list[Run], suffixes: list[str]) -> list[Run]:
        names = [run.name for run in runs]
        pairs = zip(runs, suffixes, strict=True)
        return [replace(run, name=f"{run.name} {end}") if names.count(run.name) > 1 else run for run, end in pairs]

    by_folder = renamed(runs, [f"({run.folder.resolve().name})" for run in runs])
    return renamed(by_folder, [f"#{number}" for number in range(1, len(runs) + 1)])
