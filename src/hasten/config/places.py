"""A YAML file read together with the line of every key, so that an error can name the exact place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hasten.config.yaml_text import parse_yaml

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file's mapping, and the line of each key."""

    tree: dict[Any, Any]
    lines: dict[Key, int]
    """Line (1-based) of each key and list item, by its path from the root."""
    mistakes: tuple[tuple[int, str], ...]
    """Valid YAML that is certainly a mistake: (line, message)."""


def read_document(path: Path) -> Document:
    """Read one YAML mapping; an empty file is an empty mapping. ValueError: unreadable, not YAML, not a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: is a folder, a YAML file is needed") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        root, tree = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{path}{_position(error)}: not valid YAML: {yaml_problem(error)}; "
            "correct it near there, with spaces as indents and text that has special characters in quotes"
        ) from None
    if root is None:
        return Document({}, {}, ())
    if not isinstance(tree, dict):
        raise ValueError(
            f"{path}: must hold `section:` lines with `field: value` below them, not a {type(tree).__name__}"
        )
    lines, mistakes = _walk(root)
    return Document(tree, lines, tuple(mistakes))


def _walk(root: yaml.Node) -> tuple[dict[Key, int], list[tuple[int, str]]]:
    lines: dict[Key, int] = {}
    mistakes: list[tuple[int, str]] = []
    todo: list[tuple[Key, yaml.Node]] = [((), root)]
    while todo:
        at, node = todo.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                line = key.start_mark.line + 1
                path = (*at, str(key.value))
                if path in lines and key.tag != "tag:yaml.org,2002:merge":
                    dotted = ".".join(map(str, path))
                    mistakes.append((line, f"{dotted}: given twice (first in line {lines[path]}); keep one"))
                lines[path] = line
                todo.append((path, value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[(*at, index)] = item.start_mark.line + 1
                todo.append(((*at, index), item))
    return lines, mistakes


def _position(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""


def yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong, in one line."""
    problem = getattr(error, "problem", None)
    return str(problem or error).splitlines()[0]
