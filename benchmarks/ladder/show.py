"""A ladder's results as a table for the terminal, JSON and a chart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from benchmarks.ladder.outcome import (
    Result,
    Time,
    epoch_seconds,
    epochs_to,
    median,
    median_time,
    spread,
    time_to,
)
from benchmarks.ladder.rungs import Rung
from benchmarks.ladder.task import Task
from benchmarks.machine import hardware, versions
from hasten.files import replacing
from hasten.observe.rundir import write_json
from hasten.report import words
from hasten.report.figures import Line, color, line_chart
from hasten.report.model import Key
from tools.benchmark_chart import Bar, draw

JSON, CHART = "ladder.json", "ladder.svg"
_MINUTES = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """What was run of a task, and what came of it."""

    task: Task
    rungs: Sequence[Rung]
    results: Mapping[str, Sequence[Result]]
    """By the rung's name, a result for each seed."""
    level: float
    """Value of the task's metric whose time is compared."""

    @property
    def goal(self) -> str:
        """The target in words, such as Dice 0.85."""
        return f"{metric_word(self.task)} {words.threshold(self.level)}"

    def time(self, rung: Rung) -> Time | None:
        return median_time(self.results.get(rung.name, ()), self.level)


def metric_word(task: Task) -> str:
    return {"dice": "Dice", "iou": "IoU"}[task.metric]


COLUMNS = ("Rung", "Time to target", "Range", "Reached", "Epochs", "Epoch", "CPU", "GPU", "Best")


def rows(result: Ladder) -> list[tuple[str, ...]]:
    """A row for each rung, as `COLUMNS` name them; medians over the runs."""
    return [_row(result, rung) for rung in result.rungs if result.results.get(rung.name)]


def _row(actual: Ladder, rung: Rung) -> tuple[str, ...]:
    results = actual.results[rung.name]
    epochs = epochs_to(results, actual.level)
    reached = sum(time_to(result, actual.level).reached for result in results)
    return (
        rung.label,
        str(actual.time(rung)),
        spread(results, actual.level),
        f"{reached} of {len(results)}",
        words.DASH if epochs is None else f"{epochs:.3g}",
        words.duration(epoch_seconds(results)),
        _use(results, "cpu"),
        _use(results, "gpu"),
        words.score(median(result["best"] for result in results)),
    )


def _use(results: Sequence[Result], name: str) -> str:
    value = median(result["utilisation"].get(name) for result in results)
    return words.DASH if value is None else words.share(value / 100)


def terminal_table(result: Ladder) -> Any:
    """A rich table."""
    from rich.table import Table as RichTable

    table = RichTable(title=f"{result.task.name}: {result.goal}")
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows(result):
        table.add_row(*row)
    return table


def verdict(result: Ladder) -> str:
    """How many times as fast the top is as the bottom and as MONAI's fast training, where these were run."""
    times = {rung.name: result.time(rung) for rung in result.rungs}
    top = times.get("hasten")
    goal = result.goal
    if top is None:
        return f"Time to {goal}, rung by rung."
    if not top.reached:
        return f"Hasten did not reach {goal} within {words.duration(top.seconds)}."
    messages = []
    for name, who in (("algorithms", "MONAI's fast training"), ("regular", "the regular way")):
        other = times.get(name)
        if other is not None:
            least = "" if other.reached else "at least "
            messages.append(f"{who} takes {least}{other.seconds / top.seconds:.1f} times as long")
    return f"Hasten reaches {goal} in {words.duration(top.seconds)}" + (
        f"; {', '.join(messages)}." if messages else "."
    )


def as_json(actual: Ladder) -> dict[str, Any]:
    """Everything that was measured; no path of this machine."""
    task = actual.task
    return {
        "task": {"name": task.name, "train": len(task.train), "validation": len(task.validation),
                 "classes": list(task.class_names), "channels": list(task.channels), "metric": task.metric,
                 "spatial_dims": task.spatial_dims, "patch": task.patch, "roi": task.roi, "overlap": task.overlap,
                 "patches_per_epoch": task.patches_per_epoch},
        "target": actual.level,
        "hardware": hardware(),
        "versions": versions(),
        "rungs": [
            {
                "name": rung.name,
                "label": rung.label,
                "adds": rung.adds,
                "time_to_target": _time(actual.time(rung)),
                "epochs_to_target": epochs_to(actual.results[rung.name], actual.level),
                "epoch_seconds": epoch_seconds(actual.results[rung.name]),
                "best": median(result["best"] for result in actual.results[rung.name]),
                "runs": list(actual.results[rung.name]),
            }
            for rung in actual.rungs
            if actual.results.get(rung.name)
        ],
    }  # fmt: skip


def _time(time: Time | None) -> dict[str, Any] | None:
    return None if time is None else {"seconds": time.seconds, "reached": time.reached}


def chart(result: Ladder) -> str:
    """An SVG file of the median time and the range of each rung."""
    bars: list[Bar] = []
    for rung in result.rungs:
        time = result.time(rung)
        if time is not None:
            # A run that was ended before it had validated anything has taken no time.
            seconds = [max(0.1, time_to(run, result.level).seconds) for run in result.results[rung.name]]
            middle = max(0.1, time.seconds)
            bars.append((result.task.name, rung.label, middle, min(seconds), max(seconds), not time.reached))
    return draw(f"{result.task.name}: seconds to {result.goal}", "from process start; median and range", bars)


def standalone_curves(result: Ladder, published: float) -> str:
    """An SVG file: validation scores over minutes, logarithmic, a line for each run; the published value is dashed."""
    lines, keys = _curve_lines(result, 60)
    svg = line_chart(
        lines,
        id_prefix="curves",
        describe=f"Validation {metric_word(result.task)} over time, a line for each run",
        x_label="minutes from the start of the process",
        level=published,
        log_x=True,
        bounds=(0.5, 0.92),
        ticks=_MINUTES,
    )
    dashed = Key(f"nnU-Net, published: {published:g}", "--muted", dashed=True)
    return alone(svg, f"{result.task.name}: {metric_word(result.task)} of the validation cases", (*keys, dashed))


def write(out: Path, result: Ladder) -> list[Path]:
    """ladder.json and ladder.svg in the folder `out`, made if it is missing. Returns their paths.

    Raises ValueError where they can't be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / JSON, as_json(result))
        with replacing(out / CHART, out / f".{CHART}") as file:
            file.write(chart(result).encode())
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror or error}); choose another --out") from None
    return [out / JSON, out / CHART]


def _curve_lines(actual: Ladder, unit: float = 1.0) -> tuple[list[Line], tuple[Key, ...]]:
    """A line for each run, its x in units of so many seconds, and a key for each rung."""
    lines, keys = [], []
    metric = actual.task.metric
    for place, rung in enumerate(rung for rung in actual.rungs if actual.results.get(rung.name)):
        hue = "--ink" if rung.name == "hasten" else color(place)  # the ninth of eight colours
        keys.append(Key(rung.label, hue))
        for result in actual.results[rung.name]:
            known = [point for point in result["curve"] if point[metric] is not None]
            points = [(point["seconds"] / unit, point[metric]) for point in known]
            lines.append(Line(points=points, color=hue, width=2.4 if rung.name == "hasten" else 1.2))
    return [line for line in lines if line.points], tuple(keys)


def alone(svg: str, title: str, keys: Sequence[Key] = ()) -> str:
    """The drawing as a file of its own, on white, with its title and the legend `keys` above."""
    box = svg.split('viewBox="0 0 ', 1)[1].split('"', 1)[0]
    width, height = (float(side) for side in box.split())
    above = 26 + 18 * len(keys)
    head = f'<text x="8" y="18" font-size="14" font-weight="600" fill="var(--ink)">{escape(title)}</text>'
    head += "".join(_legend(key, 36 + 18 * place) for place, key in enumerate(keys))
    inner = svg[svg.index(">") + 1 : svg.rindex("</svg>")]
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' viewBox="0 0 {width:g} {height + above:g}" width="{1.5 * width:g}"'
        f' font-family="system-ui, sans-serif" font-size="13"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{head}<g transform="translate(0 {above})">{inner}</g>'
        "</svg>\n"
    )
    for name, hue in _light_colors().items():
        text = text.replace(f"var({name})", hue)
    return text


def _light_colors() -> dict[str, str]:
    """Those of the pages' light sheet, by the name of their variable."""
    sheet = (resources.files("hasten.report") / "style.css.j2").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[\w-]+): (#\w+)", sheet.partition("}")[0]))


def _legend(key: Key, y: float) -> str:
    dashes = ' stroke-dasharray="5 4"' if key.dashed else ""
    return (
        f'<line x1="8" x2="30" y1="{y - 4}" y2="{y - 4}" stroke-width="2"{dashes}'
        f' style="stroke:var({key.color})"/>'
        f'<text x="38" y="{y}" fill="var(--muted)">{escape(key.name)}</text>'
    )
