"""The content of the page about one run: texts, figures and slices, ready for the template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from hasten.report import slices, words
from hasten.report.compare import step_seconds
from hasten.report.figures import Line, Part, color, curves, time_bar
from hasten.report.read import Example, Run
from hasten.report.words import Card

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One entry of a legend."""

    name: str
    color: str
    detail: str = ""
    dashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """One row of the time table."""

    name: str
    color: str
    seconds: str
    share: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    name: str
    dice: str
    width: int
    height: int
    image: Markup
    label: Markup
    prediction: Markup
    difference: Markup


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """The template's values for one run."""

    run: Run
    id: str
    verdict: str
    status: str
    cards: list[Card]
    loss: Markup
    metric: str
    """Dice or IoU."""
    dice: Markup
    """Its curves, and their legend."""
    dice_keys: list[Key]
    bar: Markup
    shares: list[Share]
    overlap: str
    slices: list[Slice]
    slice_keys: list[Key]
    decisions: list[tuple[str, str, str]]
    environment: list[tuple[str, str]]


def view_of(run: Run, id_: str) -> RunView:
    dice, dice_keys = _dice(run, id_)
    bar, shares, overlap = _time(run, id_)
    return RunView(
        run=run,
        id=id_,
        verdict=words.verdict(run),
        status=words.STATUS.get(run.status, run.status),
        cards=_cards(run),
        loss=_loss(run, id_),
        metric=words.metric(run).removeprefix("mean "),
        dice=dice,
        dice_keys=dice_keys,
        bar=bar,
        shares=shares,
        overlap=overlap,
        slices=_slices(run),
        slice_keys=class_keys(run.class_names.values()),
        decisions=[(entry.name, words.plain(entry.value), entry.reason) for entry in run.decisions],
        environment=words.flat(run.environment),
    )


def _cards(run: Run) -> list[Card]:
    cards = [
        Card(
            label=f"Best {words.metric(run)}",
            value=words.score(run.best_score),
            detail=f"at step {run.best_step:,}" if run.best_step is not None else "",
        )
    ]
    if run.own_grid is not None:
        name = words.metric(run)
        cards.append(
            Card(label=f"{name[0].upper()}{name[1:]} on the images' own voxels", value=words.score(run.own_grid))
        )
    if run.target is not None:
        reached = words.time_to(run, run.target)
        cards.append(
            Card(
                label=f"Time to {words.metric(run)} {words.threshold(run.target)}",
                value=words.duration(reached) if reached is not None else "not reached",
                detail="from the start" if reached is not None else f"in {words.duration(run.total_s)}",
            )
        )
    per_step = step_seconds(run)
    cards += [
        Card(
            label="Total time",
            value=words.duration(run.total_s),
            detail="so far" if run.status == "in_progress" else "",
        ),
        Card(
            label="Steps",
            value=words.DASH if run.steps is None else f"{run.steps:,}",
            detail=f"{words.short_duration(per_step)} each" if per_step is not None else "",
        ),
        Card(label="Throughput", value=words.number(run.samples_per_s), detail="samples per second"),
        Card(label="Waited for data", value=words.share(run.wait_share), detail="of the step time"),
    ]
    if run.cases:
        train, validation = run.cases.get("train"), run.cases.get("validation")
        cards.append(
            Card(
                label="Cases",
                value=words.DASH if train is None else f"{train:,}",
                detail="for training" + (f", {validation:,} held out" if validation is not None else ""),
            )
        )
    return cards


def _loss(run: Run, id_: str) -> Markup:
    points = [(record.time_s, record.loss) for record in run.train if record.loss is not None]
    if not points:
        return Markup()
    losses = [loss for _, loss in points]
    if len(points) == 1:
        return _so_far(f"training loss: {losses[0]:.3g}")
    line = Line(seconds=[time_s for time_s, _ in points], values=losses, color="--c2")
    log = min(losses) > 0 and max(losses) > 20 * min(losses)
    describe = f"Training loss over time, from {losses[0]:.3g} to {losses[-1]:.3g}"
    return Markup(curves([line], id_prefix=f"{id_}-loss", describe=describe, log=log))


def _so_far(what: str) -> Markup:
    """A sentence in place of a chart with a single point."""
    return Markup('<p class="note">One {} so far; the curve begins with the second.</p>').format(what)


def _dice(run: Run, id_: str) -> tuple[Markup, list[Key]]:
    if not run.validations:
        return Markup(), []
    last = run.validations[-1]
    lines, keys = [], []
    known = list(run.class_names.values())
    # Regions are not classes of the label map; they keep the order of the validation's record.
    scored = list(dict.fromkeys(name for record in run.validations for name in record.per_class))
    names = [name for name in known if name in scored] + [name for name in scored if name not in known]
    for position, name in enumerate(names):
        # The place in the label map, so that a class has one hue in the curves and on the slices.
        hue = color(known.index(name) if name in known else len(known) + position)
        points = [(record.time_s, record.per_class[name]) for record in run.validations if name in record.per_class]
        lines.append(Line(seconds=[time_s for time_s, _ in points], values=[dice for _, dice in points], color=hue))
        keys.append(Key(name=name, color=hue, detail=words.score(last.per_class.get(name))))
    mean = Line(
        seconds=[record.time_s for record in run.validations],
        values=[record.score for record in run.validations],
        color="--ink",
        width=2.4,
    )
    keys.insert(0, Key(name="Mean", color="--ink", detail=words.score(last.score)))
    if run.target is not None:
        keys.append(Key(name="Target", color="--muted", detail=words.threshold(run.target), dashed=True))
    if len(run.validations) == 1:
        return _so_far("validation"), keys
    figure = curves(
        [*lines, mean],
        id_prefix=f"{id_}-dice",
        describe=f"Validation {words.metric(run).removeprefix('mean ')} over time, last mean {last.score:.3f}",
        target=run.target,
    )
    return Markup(figure), keys


def _time(run: Run, id_: str) -> tuple[Markup, list[Share], str]:
    """The time bar, its table, and a warning if the recorded parts add up to more than the total."""
    seconds = {name: value for name, value in run.seconds.items() if value > 0}
    known = [(*PARTS[name], seconds[name]) for name in PARTS if name in seconds]
    others = [(name.replace("_", " "), "--muted", value) for name, value in seconds.items() if name not in PARTS]
    rows = known + others
    covered = sum(value for _, _, value in rows)
    if not rows:
        return Markup(), [], ""
    total = max(run.total_s or 0.0, covered)
    overlap = ""
    if run.total_s is not None and covered > 1.01 * run.total_s:
        overlap = f"The parts add up to {words.duration(covered)}, more than the {words.duration(run.total_s)} in all."
    # A resumed run's parts are those of its last process, so what they leave is not "other" work of this one.
    if total - covered > 0.001 * total and run.num_processes == 1:
        rows.append(("other", "--rest", total - covered))
    total = sum(value for _, _, value in rows)
    bar = time_bar(
        [Part(seconds=value, color=hue) for _, hue, value in rows],
        id_prefix=f"{id_}-time",
        describe=f"Time by part, {words.duration(total)} in all",
    )
    shares = [
        Share(name=name, color=hue, seconds=words.duration(value), share=words.share(value / total))
        for name, hue, value in rows
    ]
    return Markup(bar), [*shares, Share(name="total", color="", seconds=words.duration(total), share="")], overlap


def _slices(run: Run) -> list[Slice]:
    values = list(run.class_names) or sorted(
        {int(value) for example in run.examples for value in (*example.label.flat, *example.prediction.flat)} - {0}
    )
    return [slice_of(example, values) for example in run.examples]


def slice_of(example: Example, values: list[int]) -> Slice:
    """The pictures of a slice. values: what its label map may hold besides 0, in the order of their colours."""
    return Slice(
        name=example.name,
        dice=words.score(example.dice),
        width=example.image.shape[1],
        height=example.image.shape[0],
        image=Markup(slices.image_uri(example.image)),
        label=Markup(slices.label_uri(example.label, values)),
        prediction=Markup(slices.label_uri(example.prediction, values)),
        difference=Markup(slices.difference_uri(example.label, example.prediction)),
    )


def class_keys(names: Iterable[str]) -> list[Key]:
    """The legend of the classes on slices."""
    return [Key(name=name, color=slices.COLORS[index % len(slices.COLORS)]) for index, name in enumerate(names)]


DIFFERENCE_KEYS = [
    Key(name="missed (labelled, not predicted)", color=slices.MISSED),
    Key(name="extra (predicted, not labelled)", color=slices.EXTRA),
    Key(name="wrong class", color=slices.CONFUSED),
]
