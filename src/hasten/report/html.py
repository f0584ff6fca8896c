"""`write_page`: a page as one self-contained HTML file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hasten.files import replacing
from hasten.report import words
from hasten.report.model import Bar, Key, Page

_HUES = 16
"""Colours of the page for parts of a bar; they repeat after these."""


def write_page(page: Page, out: Path) -> Path:
    """Write the page to the file `out`, replaced in one move, and return it; makes its folder.

    Raises ValueError if `out` cannot be written.
    """
    return write_template("page.html.j2", out, page=page)


def write_template(name: str, out: Path, **content: Any) -> Path:
    """`write_page` for a template of this folder and its content."""
    out = Path(out)
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    from hasten.report.slices import difference_uri, image_uri, label_uri  # slow to load

    templates.filters |= {"breaks": _breaks, "stack": _stack, "safe_svg": Markup, "score": words.score}
    templates.filters |= {"image_uri": image_uri, "label_uri": label_uri, "difference_uri": difference_uri}
    html = templates.get_template(name).render(content)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as file:
            file.write(html.encode("utf-8", errors="replace"))
    except OSError as error:
        raise ValueError(f"{out}: cannot be written ({error.strerror or error}); name another file") from None
    return out


def _breaks(text: str) -> Markup:
    """`text`, with paths that may be broken behind a slash, and so not within a name."""
    return text if isinstance(text, Markup) else Markup(re.sub(r"(?<=[^\s/])/(?=[^\s/])", "/<wbr>", str(escape(text))))


def _stack(bar: Bar | None) -> dict[str, Any] | None:
    """The legend of a bar, the percentage of each part and the spoken label; None if nothing is above 0."""
    if bar is None:
        return None
    colors = bar.colors or tuple(f"--c{index % _HUES + 1}" for index in range(len(bar.parts)))
    parts = [
        (name, float(amount), color)
        for (name, amount), color in zip(bar.parts, colors, strict=True)
        if math.isfinite(amount) and amount > 0
    ]
    if not parts:
        return None
    total = sum(amount for _, amount, _ in parts)
    unit = bar.unit

    def text(value: float) -> str:
        return words.short_duration(value) if unit == "s" else f"{words.number(value)}{words.NBSP}{unit}"

    shares = ", ".join(f"{name} {words.share(amount / total)}" for name, amount, _ in parts)
    return {
        "keys": [Key(name, color, f"{text(amount)} ({words.share(amount / total)})") for name, amount, color in parts],
        "pieces": [(color, f"{100 * amount / total:.3f}") for _, amount, color in parts],
        "describe": f"{text(total)} in all: {shares}",
    }
