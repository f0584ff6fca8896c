"""The pages' templates, rendered and written."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hasten.files import replacing


def render(name: str, **values: Any) -> str:
    """A template of this folder rendered with `values`; all but Markup is escaped."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["breaks"] = _breaks
    return templates.get_template(name).render(**values)


def _breaks(text: str) -> Markup:
    """`text`, with paths that may be broken behind a slash, and so not within a name."""
    return Markup(re.sub(r"(?<=[^\s/])/(?=[^\s/])", "/<wbr>", str(escape(text))))


def write_page(html: str, target: Path) -> Path:
    """Write a page in one move, so that one that is open is never half there; makes its folder. Returns `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, target.with_name(f".{target.name}.{os.getpid()}")) as file:
        file.write(html.encode("utf-8", errors="replace"))
    return target
