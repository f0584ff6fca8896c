"""The sections about one run: curves, where the time went, the machine, slices, and what was decided."""

from __future__ import annotations

from typing import Any

from hasten.report import words
from hasten.report.compare import step_seconds
from hasten.report.figures import Line, color, line_chart
from hasten.report.machine import machine_section
from hasten.report.model import Bar, Card, Chart, Key, Note, Section, Table, badge
from hasten.report.read import Run
from hasten.report.slices import DIFFERENCE_KEYS, class_keys, slice_of, slices_note

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
        _curves(run, id_),
        _time(run, id_),
        machine_section(run.machine, f"{id_}-machine"),
        _slices(run, id_),
        _accelerators(run, id_),
        _plan(run, id_, folded),
        _environment(run, id_),
        _config(run, id_),
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
    if len(run.validations) == 1:
        return Chart("", title, tuple(keys), _so_far("validation"))
    describe = f"Validation {metric} over time, last mean {last.score:.3f}"
    svg = line_chart(lines, id_prefix=f"{id_}-dice", describe=describe, level=run.target)
    return Chart(svg, title, tuple(keys))


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
        note=f"Shares are of {words.duration(total)} in all.",
        warning=warning,
        id=section_id,
    )


def _slices(run: Run, id_: str) -> Section:
    return Section(
        "Example slices",
        slices=tuple(map(slice_of, run.examples)),
        keys=(*class_keys(run.class_names.values()), *DIFFERENCE_KEYS),
        note=slices_note(run.examples) if run.examples else "No example slices were recorded.",
        id=f"{id_}-slices",
    )


def _accelerators(run: Run, id_: str) -> Section:
    rows = []
    for name, value in run.accelerators.items():
        detail = value if isinstance(value, dict) else {"on": value}
        on = detail.get("on")
        state = badge("not known") if not isinstance(on, bool) else badge("on", "good") if on else badge("off")
        rows.append((name, state, _text(detail, "reason")))
    return _listing("Accelerators", ("Accelerator", "State", "Why"), tuple(rows), f"{id_}-accelerators")


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
