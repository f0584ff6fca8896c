"""Loads a RunConfig from YAML and `a.b=value` overrides, validates it, and dumps it to YAML."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import reprlib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import yaml

from hasten.config.check import check_run
from hasten.config.patterns import as_lists
from hasten.config.schema import RunConfig
from hasten.config.url import is_url
from hasten.config.user_code import absolute_code
from hasten.config.validate import checked_as, dotted, prefixes, sections, value_at
from hasten.config.yaml_file import Key, load_yaml, read_document, yaml_problem
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
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=named))


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
    gathered = gather(root, path, overrides, tree)
    config, mistakes = checked_as(root, gathered.tree)
    mistakes = mistakes or located(check(config))
    refuse(gathered.mistakes, mistakes, gathered.origins, path)
    folder = path.parent if path is not None else Path()
    return with_absolute_paths(config, lambda key: Path() if key in gathered.overridden else folder)


def with_absolute_paths(config: _T, folder: Callable[[Key], Path] = lambda key: Path()) -> _T:
    """`config` with every file absolute. folder: base of a relative (section, field); default the current folder."""
    for key in _PATHS:
        section, name = map(str, key)
        fields = getattr(config, section, None)
        absolute = absolute_code if key in _CODE else _absolute
        value = getattr(fields, name, None)
        if value:
            fields = dataclasses.replace(fields, **{name: absolute(value, folder(key))})  # type: ignore[type-var]
            config = dataclasses.replace(config, **{section: fields})  # type: ignore[type-var]
    return config


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """Settings of a file and its overrides, not validated yet."""

    tree: dict[Any, Any]
    origins: dict[Key, str]
    """Line or override of each setting, in the order of the file, then of the overrides."""
    mistakes: list[str]
    """Mistakes in the file's form and in overrides."""
    overridden: set[Key]


def gather(root: type, path: Path | None, overrides: Sequence[str], tree: Mapping[str, Any] | None = None) -> Gathered:
    """The settings of a YAML file, or of `tree`, with overrides on top, for the dataclass `root`."""
    settings: dict[Any, Any] = copy.deepcopy(dict(tree or {}))
    origins: dict[Key, str] = {}
    mistakes: list[str] = []
    if path is not None:
        document = read_document(path)
        settings = _without_former(document.tree, str(path))
        in_order = sorted(document.lines.items(), key=lambda item: item[1])
        origins = {key: f"{path}:{line}" for key, line in in_order}
        mistakes = [f"{path}:{line}: {message}" for line, message in document.mistakes]
    _drop_empty_sections(root, settings)
    overridden: set[Key] = set()
    patch = value_at(settings, ("sample", "patch"))
    for text in overrides:
        problem = _apply_override(text, settings, origins, overridden)
        if problem:
            mistakes.append(f"override '{_short(text)}': {problem}")
    followed = patch is not None and value_at(settings, ("infer", "patch")) == patch != value_at(
        settings, ("sample", "patch")
    )
    if followed and ("infer", "patch") not in overridden:
        settings["infer"]["patch"] = None  # of a run that has been planned: the window follows the training patch
    return Gathered(tree=settings, origins=origins, mistakes=mistakes, overridden=overridden)


def located(messages: Sequence[str]) -> list[tuple[Key, str]]:
    """Messages that begin with their dotted path, with that path."""
    return [(tuple(message.partition(":")[0].split(".")), message) for message in messages]


def refuse(mistakes: Sequence[str], at_keys: list[tuple[Key, str]], origins: dict[Key, str], path: Path | None) -> None:
    """Raise one ValueError with all mistakes, if any: finished messages first, then `at_keys`, ordered by place."""
    order = list(origins)  # in the order of the file, then of the overrides
    in_order = sorted(
        at_keys, key=lambda item: next((order.index(at) for at in prefixes(item[0]) if at in origins), len(order))
    )
    lines = [*mistakes, *(f"{_place(at, origins, path)}{message}" for at, message in in_order)]
    if len(lines) == 1:
        raise ValueError(lines[0])
    if lines:
        name = str(path) if path is not None else "the run's settings"
        rest = [f"and {len(lines) - _MAX_LISTED} more"] if len(lines) > _MAX_LISTED else []
        text = "\n".join(f"  {mistake}" for mistake in [*lines[:_MAX_LISTED], *rest])
        raise ValueError(f"{name}: {len(lines)} mistakes\n{text}")


def from_dict(tree: dict[str, Any], where: str) -> RunConfig:
    """The run that `to_dict` gave, or an edited form of it. Raises ValueError that begins with `where`."""
    config, found = checked_as(RunConfig, _without_former(tree, where))
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


def _absolute(text: str, folder: Path) -> str:
    return text if is_url(text) else str(Path.cwd() / folder / expanded(text))


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


_FORMER_FIELDS = {
    ("cache", "shard_dirs"): [],
    ("detect", "rates"): [0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
    ("distribute", "average_every"): 8,
    ("distribute", "exchange"): "file",
    ("distribute", "overlap"): True,
    ("distribute", "static_graph"): False,
    ("distribute", "sync_loss"): True,
    ("infer", "flip_below"): 1.0,
    ("infer", "size_spread"): 0.0,
    ("infer", "sums"): "fp32",
    ("infer", "sums_on_host"): False,
    ("infer", "whole_up_to"): 1.0,
    ("observe", "project"): "hasten",
    ("sample", "brightness_range"): [0.75, 1.25],
    ("sample", "contrast_range"): [0.75, 1.25],
    ("sample", "gamma_range"): [0.7, 1.5],
    ("sample", "noise_std"): [0.0, 0.1],
    ("sample", "shear"): 0.0,
    ("sample", "stage_voxels"): True,
    ("tiles", "home"): "auto",
    ("tiles", "ram"): "auto",
    ("train", "compile_blocks"): False,
    ("train", "fp32_layers"): [],
    ("train", "keep_checkpoints"): 1,
    ("train", "head"): None,
    ("train", "head_steps"): 0,
    ("train", "lookahead"): 0,
    ("train", "poly_power"): 0.9,
    ("train", "validate_async"): False,
}
"""Fields of earlier versions, and their defaults: run directories hold every field."""
_FORMER_CHOICES = {("distribute", "strategy"): "local_sgd", ("train", "fused_kernels"): "norms"}
"""Fields that stay, and a value of earlier versions."""


def _without_former(tree: Mapping[Any, Any], where: str) -> dict[Any, Any]:
    """The settings of a file without those of earlier versions, so that old runs stay of use; a log line names them."""
    kept = {section: dict(fields) if isinstance(fields, dict) else fields for section, fields in tree.items()}
    gone: list[str] = []
    trackers = kept.get("observe", {}).get("trackers") if isinstance(kept.get("observe"), dict) else None
    if isinstance(trackers, list) and "jsonl" in trackers:
        kept["observe"]["trackers"] = [name for name in trackers if name != "jsonl"]
        gone.append("observe.trackers=[jsonl]")
    for (section, name), value in (*_FORMER_FIELDS.items(), *_FORMER_CHOICES.items()):
        fields, is_field = kept.get(section), (section, name) in _FORMER_FIELDS
        if isinstance(fields, dict) and name in fields and (is_field or fields[name] == value):
            given = fields.pop(name)
            if not is_field or given != value:
                gone.append(f"{section}.{name}={given}")
    if gone:
        log.warning("%s: %s: of an earlier version; left out, as if never set", where, ", ".join(gone))
    return kept


def _place(at: Key, origins: dict[Key, str], path: Path | None) -> str:
    """The place where the longest known part of a path was written, as "place: ", or ""."""
    origin = next((origins[key] for key in prefixes(at) if key in origins), str(path) if path is not None else "")
    return f"{origin}: " if origin else ""
