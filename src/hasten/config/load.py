"""Loads a RunConfig from YAML and `a.b=value` overrides, validates it, and dumps it to YAML."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import reprlib
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import yaml

from hasten.config.check import check_run
from hasten.config.patterns import as_lists
from hasten.config.schema import RunConfig
from hasten.config.settled import with_settings
from hasten.config.url import is_url
from hasten.config.user_code import absolute_code
from hasten.config.validate import checked_as, dotted, prefixes, sections, value_at
from hasten.config.yaml_file import Document, Key, load_yaml, read_document, yaml_problem
from hasten.files import expanded

log = logging.getLogger(__name__)

_T = typing.TypeVar("_T")
_MAX_LISTED = 10
"""Mistakes in one error."""
_FILES: tuple[Key, ...] = (("data", "source"), ("cache", "dir"), ("network", "weights"))
_CODE: tuple[Key, ...] = (("augment", "chain"), ("network", "name"), ("loss", "name"))
_PATHS = (*_FILES, *_CODE)


def load_run(path: str | Path | None = None, overrides: Sequence[str] | Mapping[str, Any] = ()) -> RunConfig:
    """The run that a YAML file and overrides describe.

    A relative `data.source`, `cache.dir`, `network.weights` or file of `augment.chain`, `network.name` or `loss.name`
    is taken from the YAML file's folder, one in an override from the current folder; all become absolute.

    Args:
        path: YAML file; None takes the defaults and the overrides.
        overrides: each "section.field=value" with the value in YAML, a later one wins; or {"section.field": value} with
            plain values, paths, tuples, or NumPy's numbers and arrays. `network.args` and `loss.args` are for code that
            `train` gets.

    Raises:
        ValueError: lists every mistake at once, each with its line or override, its dotted path and a remedy.

    Example:
        >>> config = hasten.load_run(overrides=["data.source=path/to/dataset", "train.steps=500"])
        >>> same = hasten.load_run(overrides={"data.source": "path/to/dataset", "train.steps": 500})
    """
    return load_as(RunConfig, partial(check_run, code_follows=True), path, _as_texts(overrides))


def load_source(source: str, overrides: Sequence[str]) -> RunConfig:
    """The run of a data set, a path or a URL, with overrides. Raises ValueError, also for one that names another."""
    if any(text.partition("=")[0].strip() == "data.source" for text in overrides):
        raise ValueError(f"data.source is given twice: as {source} and as an override; leave out the override")
    config = load_run(None, overrides)
    named = source if is_url(source) else str(Path(source).absolute())
    return with_settings(config, "data", source=named)


def _as_texts(overrides: Any) -> list[str]:
    """Overrides as texts. Raises ValueError for what is neither a mapping nor texts."""
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f"{name}={_yaml_of(str(name), value)}" for name, value in overrides.items()]
    others = [each for each in overrides if not isinstance(each, str)]
    if others:
        raise ValueError(f"overrides: must be texts such as 'train.steps=500', or one dict (given {others[0]!r})")
    return list(overrides)


def _yaml_of(name: str, value: Any) -> str:
    """A value as JSON, which is YAML too; paths as texts, NumPy's and torch's numbers and arrays as Python's."""

    def plain(other: Any) -> Any:
        if isinstance(other, PurePath):
            return str(other)
        if hasattr(other, "tolist"):
            return other.tolist()
        raise ValueError(f"override {name}: {type(other).__name__} is no plain value; give numbers, texts or lists")

    return json.dumps(value, default=plain, ensure_ascii=False)


def load_as(
    root: type[_T],
    check: Callable[[_T], list[str]],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    tree: Mapping[str, Any] | None = None,
) -> _T:
    """`load_run` for settings of the dataclass `root`.

    check: messages about values out of range, each beginning with its dotted path. tree: settings in place of a file.
    """
    path = Path(path) if path is not None else None
    document = read_document(path) if path is not None else Document(copy.deepcopy(dict(tree or {})), {}, ())
    settings, name = document.tree, str(path) if path is not None else ""
    origins = {key: f"{name}:{line}" for key, line in document.lines.items()}
    problems = [f"{name}:{line}: {message}" for line, message in document.mistakes]
    _drop_empty_sections(root, settings)
    patch = value_at(settings, ("sample", "patch"))
    overridden: set[Key] = set()
    for text in overrides:
        problem = _apply_override(text, settings, origins, overridden)
        if problem:
            problems.append(f"override '{_short(text)}': {problem}")
    followed = patch is not None and value_at(settings, ("infer", "patch")) == patch
    if followed and value_at(settings, ("sample", "patch")) != patch and ("infer", "patch") not in overridden:
        settings["infer"]["patch"] = None  # of a run that has been planned: the window follows the training patch
    config, mistakes = checked_as(root, settings)
    if not mistakes:
        mistakes = [(tuple(message.partition(":")[0].split(".")), message) for message in check(config)]
    problems += [f"{_place(at, origins, name)}{message}" for at, message in mistakes]
    if len(problems) == 1:
        raise ValueError(problems[0])
    if problems:
        rest = [f"and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
        listed = "\n".join(f"  {problem}" for problem in [*problems[:_MAX_LISTED], *rest])
        of = name or "the run's settings"
        raise ValueError(f"{of}: {len(problems)} mistakes\n{listed}")
    folder = path.parent if path is not None else Path()
    return with_absolute_paths(config, lambda key: Path() if key in overridden else folder)


def with_absolute_paths(config: _T, folder: Callable[[Key], Path] = lambda key: Path()) -> _T:
    """`config` with every file absolute. folder: base of a relative (section, field); default the current folder."""
    for key in _PATHS:
        section, name = map(str, key)
        if value := getattr(getattr(config, section, None), name, None):
            if key in _CODE:
                value = absolute_code(value, folder(key))
            elif not is_url(value):
                value = str(Path.cwd() / folder(key) / expanded(value))
            config = with_settings(config, section, **{name: value})
    return config


def from_dict(tree: dict[str, Any], where: str) -> RunConfig:
    """The run that `to_dict` gave, or an edited form of it. Raises ValueError that begins with `where`.

    Fields that this version has not are left out, after a warning, so that models of another version stay of use.
    """
    known = {str(at[0]): types for at, types in sections(RunConfig) if len(at) == 1}
    kept = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}
    gone = [(name, key) for name in known for key in kept.get(name) or () if key not in known[name]]
    for name, key in gone:
        log.warning("%s: %s.%s=%s: a setting of another version, left out", where, name, key, kept[name].pop(key))
    config, found = checked_as(RunConfig, kept)
    mistakes = [f"{dotted(at)}: {message}" if at else message for at, message in found] or check_run(config)
    if mistakes:
        raise ValueError(f"{where}: " + "; ".join(mistakes))
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dicts and lists of plain values, ready for JSON or YAML."""
    return typing.cast("dict[str, Any]", as_lists(dataclasses.asdict(config)))


def dump_run(config: Any) -> str:
    """YAML text that loads back to an equal configuration; every field is written."""

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, True))
    return str(yaml.dump(to_dict(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))


def _drop_empty_sections(root: type, tree: dict[Any, Any]) -> None:
    """Replace null by {} in sections whose lines are all commented out: they mean the defaults."""
    for at, _ in sections(root):
        if at:
            parent = value_at(tree, at[:-1])
            if isinstance(parent, dict) and at[-1] in parent and parent[at[-1]] is None:
                parent[at[-1]] = {}


def _apply_override(text: str, tree: dict[Any, Any], origins: dict[Key, str], from_override: set[Key]) -> str | None:
    """Write one override into `tree`; returns the problem, if there is one."""
    name_text, equals, value_text = text.partition("=")
    names = name_text.strip().split(".")
    if not equals or not all(names):
        return "must read section.field=value"
    if not value_text.strip():
        return "has no value; write null for none, or '' for an empty text"
    try:
        value = load_yaml(value_text)
    except yaml.YAMLError as error:
        return f"the value is not valid YAML ({yaml_problem(error)}); quote text that has special characters"
    node: Any = tree
    for depth, name in enumerate(names[:-1]):
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            return f"{'.'.join(names[: depth + 1])} is {reprlib.repr(node)}, not a section"
    node[names[-1]] = value
    key = tuple(names)
    for old in [old for old in origins if old[: len(key)] == key]:
        del origins[old]
    origins[key] = f"override '{_short(text)}'"
    from_override.add(key)
    from_override.update(path for path in _PATHS if key == path[:1])
    return None


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _place(at: Key, origins: dict[Key, str], name: str) -> str:
    """The place where the longest known part of a path was written, as "place: ", or ""."""
    origin = next((origins[key] for key in prefixes(at) if key in origins), name)
    return f"{origin}: " if origin else ""
