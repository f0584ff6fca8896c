"""What the readers of case lists share: a list before it is checked, its entries, and JSON with exact error places."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.cases.formats import stem
from hasten.cases.types import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Cases as a source declares them. None is what the source leaves to be found in its files."""

    name: str
    source: Path
    cases: tuple[Case, ...]
    labels: dict[int, str] | None = None
    channels: tuple[str, ...] | None = None
    modality: str = ""


def load_json(path: Path) -> Any:
    """Parse a JSON file. Raises ValueError with line and column."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: is not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); correct it there."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); check the path and that it is UTF-8 text.") from error


def case_from_entry(entry: object, folder: Path, where: str) -> Case:
    """A case from `{"id", "image": str | list, "label"}`; relative paths start at `folder`. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f'{where}: must be {{"image": ..., "label": ...}}, not {entry!r}.')
    image, label = entry.get("image"), entry.get("label")
    names = [image] if isinstance(image, str) else image
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f'{where}: "image" must name a file or a list of files, not {image!r}.')
    if not isinstance(label, str) or not label:
        raise ValueError(f'{where}: "label" must name the label map of {names[0]}, not {label!r}.')
    paths = tuple(folder / name for name in names)
    case_id = str(stem(paths[0]) if entry.get("id") in (None, "") else entry["id"])
    if "/" in case_id or "\\" in case_id:
        raise ValueError(f'{where}: the id "{case_id}" holds a slash, but ids become file names; rename it.')
    return Case(id=case_id, image=paths, label=folder / label)


def first_few(names: Iterable[object], limit: int = 3) -> str:
    """`a, b, c and 5 more`."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:limit]) + (f" and {len(shown) - limit} more" if len(shown) > limit else "")
