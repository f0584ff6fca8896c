"""Sphinx settings of the site: `make docs`. Nothing that it shows has to be generated into the source tree first."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import hasten  # noqa: E402

project = "Hasten"
author = "The Hasten authors"
release = version = hasten.__version__
copyright = "The Hasten authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
suppress_warnings = ["myst.header"]  # a page whose text is another page's begins below the first level

smartquotes = False  # --out stays what it is
highlight_language = "text"  # of a block that names none
html_theme = "furo"
html_title = "Hasten"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]

default_role = "code"  # docstrings are written with single backticks
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
nitpicky = True
# Without a network nothing of torch, MONAI and numpy can be linked; a link to anything of ours must hold.
nitpick_ignore_regex = [("py:.*", r"(?!hasten\.(?!.*\._)).*"), ("py:class", r"hasten\.[a-z_.]+\.[A-Z].*")]

linkcheck_anchors = False
linkcheck_timeout = 20


def _fill(app: Any, docname: str, source: list[str]) -> None:
    """Put what the code itself says in place of a page's marker, so that it can't go stale."""
    import reference_pages as made

    makers = {
        "notebook": lambda: made.notebook_markdown(ROOT / "docs" / "start.ipynb"),
        "changelog": lambda: (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "contributing": lambda: (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
    }
    filled = re.sub(r"<!-- made: (\w+) -->", lambda result: makers[result[1]](), source[0])
    if filled != source[0]:
        app.env.note_reread()  # The page's own file does not change with what it shows.
    source[0] = filled


def _plain_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: a star or bar is itself, and a list behind a sentence gets docutils' empty line."""
    bullet = re.compile(r"\s*([-*]|\d+\.) ")
    spaced: list[str] = []
    for line in lines:
        if bullet.match(line) and spaced and spaced[-1].strip() and not bullet.match(spaced[-1]):
            spaced.append("")
        pieces = line.split("`")  # every second one is code
        spaced.append("`".join(piece if at % 2 else re.sub(r"(?<=\S)[*|]|[*|](?=\S)", r"\\\g<0>", piece)
                               for at, piece in enumerate(pieces)))  # fmt: skip
    lines[:] = spaced


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _plain_docstring, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
