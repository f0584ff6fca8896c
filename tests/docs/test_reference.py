"""The reference pages hold every verb, option, setting and public name."""

from __future__ import annotations

import re

import reference_pages as made

import hasten
from hasten.config.networks import NETWORKS, SETTINGS
from tests.docs.reading import DOCS, ROOT


def test_every_network_is_on_its_page_and_in_its_table() -> None:
    page, table = (DOCS / "reference/networks.md").read_text(), made.networks_markdown()
    for name, built_in in NETWORKS.items():
        assert f"| `{name}` | " in page
        [row] = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
        cells = [cell.strip() for cell in row.split("|")[2:-1]]
        assert [name for name, cell in zip(SETTINGS, cells, strict=True) if cell] == [
            each for each in SETTINGS if each in built_in.settings
        ]


def test_every_public_name_is_on_the_python_page() -> None:
    page = (DOCS / "reference/python.md").read_text()
    shown = set(re.findall(r":: hasten\.(\w+)$", page, re.M))
    assert {name for name in hasten.__all__ if name != "__version__"} - shown == set()


def test_every_example_is_shown_and_run() -> None:
    shown = set(re.findall(r"literalinclude\} \.\./examples/(\S+)", (DOCS / "examples.md").read_text()))
    there = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert shown == there
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in there if name not in tests] == []
