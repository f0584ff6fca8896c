"""Links between the Markdown files, as they are read in the repository: the file is there, and the heading too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.reading import DOCS, ROOT, anchors, name, pages, prose, spans

MADE = {DOCS / name for name in ("changelog.md", "contributing.md")}
"""Pages whose headings come at build time; the build checks links to them."""


def broken(page: Path) -> list[str]:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and file not in MADE and file.suffix == ".md" and anchor not in anchors(file):
            wrong.append(f"{target}: no such heading; there are {sorted(anchors(file))}")
    return wrong


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_of(page: Path) -> None:
    assert broken(page) == []


def test_files_that_contributing_lists_exist() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where to find what")[2].partition("\n## ")[0]
    files = [span for span in spans(section) if "/" in span and span != "src/hasten"]
    assert len(files) > 30
    assert [file for file in files if not (ROOT / "src/hasten" / file).exists()] == []


def test_every_page_is_in_the_site() -> None:
    listed = set()
    written = [page for page in DOCS.rglob("*.md") if "_build" not in page.parts]
    for page in written:
        for tree in re.findall(r"```\{toctree\}(.*?)```", page.read_text(), flags=re.S):
            entries = [line for line in tree.splitlines() if line.strip() and not line.startswith(":")]
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    there = {page.resolve() for page in written} - {(DOCS / "index.md").resolve()}
    assert sorted(name(page) for page in there - listed) == []
    assert sorted(name(page) for page in listed - there) == []
