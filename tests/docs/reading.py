"""Markdown files of the repository taken apart: fenced blocks, links, headings, code spans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One fenced block: `words` is what stands behind the fence, `line` where it begins, from 1."""

    page: Path
    line: int
    words: str
    text: str

    @property
    def language(self) -> str:
        return self.words.split()[0] if self.words else ""


def pages() -> list[Path]:
    """Every Markdown page that is read on the site or in the repository's root."""
    return sorted([*ROOT.glob("*.md"), *(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)])


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    inside: list[str] | None = None
    words, begins, fence = "", 0, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        opened = re.match(r"\s*(`{3,})(.*)$", line)
        if inside is None and opened:
            inside, words, begins, fence = [], opened[2].strip(), number, opened[1]
        elif inside is not None and line.strip() == fence:
            yield Block(page=page, line=begins, words=words, text="\n".join(inside) + "\n")
            inside = None
        elif inside is not None:
            inside.append(line)
    assert inside is None, f"{name(page)}:{begins}: a block that is not closed"


def prose(page: Path) -> str:
    """The text without its fenced blocks and comments; line numbers are kept."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^\s*(`{3,}).*?^\s*\1\s*$", lambda result: "\n" * result[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def spans(text: str) -> list[str]:
    """Code between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub and MyST make them."""
    results = set()
    for heading in re.findall(r"^#{1,6} +(.+)$", prose(page), flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        results.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return results
