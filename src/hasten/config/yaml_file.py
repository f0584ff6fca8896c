"""YAML from outside, bounded in size and depth, without the number formats of YAML 1.1; files with each key's line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_MOST_NODES = 100_000
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _Loader(yaml.SafeLoader):
    """SafeLoader that leaves 1:30 (90 in YAML 1.1) and 010 (8 there) as text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [(tag, pattern) for tag, pattern in rules if tag not in (_INT, _FLOAT)]
        for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    _INT, re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$"
        r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


def parse_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """The root node and the value of a YAML document; None for an empty one. Raises yaml.YAMLError."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, None
        if _size(root, {}) > _MOST_NODES:
            raise yaml.YAMLError(f"it has more than {_MOST_NODES} values, aliases written out")
        return root, loader.construct_document(root)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # a number with thousands of digits, or an invalid date
        raise yaml.YAMLError(str(error).partition(";")[0]) from None


def load_yaml(text: str) -> Any:
    """The value of a YAML document. Raises yaml.YAMLError."""
    return parse_yaml(text)[1]


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """The number of values in a node, aliases expanded."""
    if id(node) not in known:
        known[id(node)] = _MOST_NODES + 1  # an alias within itself would recurse forever
        pairs = node.value if isinstance(node, yaml.MappingNode) else [node.value]
        children = (child for pair in pairs for child in pair) if isinstance(node, yaml.CollectionNode) else ()
        known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]


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
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file in UTF-8 ({error}); save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        root, tree = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ValueError(
            f"{path}{line}: not valid YAML: {yaml_problem(error)}; "
            "correct it near there, with spaces as indents and text that has special characters in quotes"
        ) from None
    if root is None:
        return Document({}, {}, ())
    if not isinstance(tree, dict):
        kind = type(tree).__name__
        raise ValueError(f"{path}: must hold `section:` lines with `field: value` below them, not a {kind}")
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


def yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong, in one line."""
    problem = getattr(error, "problem", None)
    return str(problem or error).splitlines()[0]
