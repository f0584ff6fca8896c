"""The HTML report of a detection run: FROC and heat maps."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from hasten.observe.rundir import REPORT_HTML
from hasten.pathology.evaluate import HEAT_MAPS
from hasten.report import words
from hasten.report.figures import Line, color, line_chart
from hasten.report.html import write_page as write_html
from hasten.report.model import Card, Chart, Page, Section, Table
from hasten.report.slices import png_uri

_PICTURES = 4
_WIDEST = 10.0
"""False positives per slide that the figure goes to."""


def write_page(out: Path, summary: dict[str, Any], froc: dict[str, Any]) -> Path:
    """report.html of a run directory. froc: what froc.json holds."""
    score, best = froc["score"], summary["best"]["value"]
    outcome = f"FROC {score:.3f}" if score is not None else f"no FROC: {froc['why']}"
    cards = (
        Card("FROC", "none" if score is None else f"{score:.3f}", "mean sensitivity at the rates below"),
        Card("AUC of tiles", "none" if best is None else f"{best:.4f}", f"best, at step {summary['best']['step']}"),
        Card("Total", words.short_duration(summary["seconds"]["total"]), f"{summary['steps']} steps"),
    )
    page = Page(
        title=f"Detection: {summary['name']}",
        verdict=f"{outcome} on {len(froc['slides'])} slides that were not trained on.",
        cards=cards,
        sections=(*_froc(froc), _slides(froc["slides"]), *_pictures(out, froc["slides"])),
    )
    return write_html(page, out / REPORT_HTML)


def _froc(froc: dict[str, Any]) -> list[Section]:
    if froc["score"] is None:
        return []
    curve = froc["curve"]
    pairs = zip(curve["false_positives_per_slide"], curve["sensitivity"], strict=True)
    points = sorted((float(x), float(y)) for x, y in pairs if x <= _WIDEST)
    line = Line(points=points, color=color(0))
    axis, what = "False positives per slide", "Share of lesions found"
    figure = line_chart([line], x_label=axis, id_prefix="froc", describe=what, bounds=(0.0, 1.0))
    rows = tuple((f"{rate:g}", f"{value:.3f}") for rate, value in zip(froc["rates"], froc["sensitivity"], strict=True))
    text = f"{froc['lesions']} lesions on {froc['images']} slides; isolated tumour cells do not count."
    table = Table(("False positives per slide", "Share of lesions found"), rows, (1,))
    return [Section("Free-response ROC", text=text, charts=(Chart(figure),), table=table)]


def _slides(slides: list[dict[str, Any]]) -> Section:
    rows = tuple(
        (each["id"], f"{each['cells']:,}", words.score(each["highest"]), str(each["detections"]), str(each["lesions"]))
        for each in slides
    )
    columns = ("Slide", "Tiles", "Highest chance", "Detections", "Lesions")
    return Section("Slides", table=Table(columns, rows, (1, 2, 3, 4)))


def _pictures(out: Path, slides: list[dict[str, Any]]) -> list[Section]:
    """The slides with the most lesions first."""
    names = [each["id"] for each in sorted(slides, key=lambda each: -each["lesions"])[:_PICTURES]]
    charts = {name: Chart(_svg(out / HEAT_MAPS / f"{name}.png", name)) for name in names}
    return [Section(f"Heat map: {name}", charts=(chart,)) for name, chart in charts.items()]


def _svg(path: Path, name: str) -> str:
    with Image.open(path) as image:
        (width, height), uri = image.size, png_uri(image)
    return (
        f'<svg class="figure" viewBox="0 0 {width} {height}" role="img" aria-label="Heat map of {escape(name)}">'
        f'<image width="{width}" height="{height}" href="{uri}"/></svg>'
    )
