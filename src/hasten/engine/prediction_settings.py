"""prediction.json: the settings behind the label maps of a folder, by which a later prediction can resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Any

from hasten.config.resume import text_of
from hasten.engine.ensemble import Member
from hasten.engine.postprocess import Cleanings
from hasten.files import hash_file, replacing

PREDICTION_JSON = "prediction.json"
_OF_THE_MACHINE = ("batch_size", "sums_on_host")
"""Settings of `infer` that do not affect the label maps."""


def deciding_settings(members: Sequence[Member], cleanings: Cleanings) -> dict[str, Any]:
    """The content of prediction.json: everything that the label maps of these networks depend on."""
    infer = members[0].content["config"]["infer"]
    return {
        "networks": {str(member.where): hash_file(member.where) for member in members},
        "infer": {name: value for name, value in infer.items() if name not in _OF_THE_MACHINE},
        "postprocessing": {str(value): asdict(cleaning) for value, cleaning in cleanings.items()},
    }


def written_since(out: Path, settings: dict[str, Any], *, overwrite: bool) -> float:
    """The time of `out`/prediction.json, after which label maps were written with these settings.

    Infinity without such a file. Where it holds other settings, infinity with `overwrite`, else a ValueError.
    """
    path = out / PREDICTION_JSON
    before = _read(path)
    differences = _differences(before, settings) if before is not None else []
    if before is None or (differences and overwrite):
        return float("inf")
    if differences:
        lines = "\n  ".join(differences)
        raise ValueError(
            f"{path}: the label maps beside it were predicted otherwise; predict as before, choose another --out, or "
            f"add --overwrite to replace them\n  {lines}"
        )
    return path.stat().st_mtime


def write_settings(out: Path, settings: dict[str, Any]) -> None:
    """Write `out`/prediction.json. One with the same settings keeps its time. Raises ValueError."""
    path = out / PREDICTION_JSON
    before = _read(path)
    if before is not None and not _differences(before, settings):
        return
    try:
        with replacing(path, out / f".{PREDICTION_JSON}.{token_hex(4)}") as file:
            file.write(f"{json.dumps(settings, indent=2)}\n".encode())
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}); choose another --out") from None


def _read(path: Path) -> dict[str, Any] | None:
    """None for a file that is missing, or that Hasten did not write."""
    try:
        content = json.loads(path.read_bytes())
        return content if {"networks", "infer", "postprocessing"} <= set(content) else None
    except (OSError, ValueError, TypeError):
        return None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    now = json.loads(json.dumps(now))  # tuples become lists
    differences = []
    one, two = before["networks"], now["networks"]
    if sorted(one.values()) != sorted(two.values()):
        changed = [where for where in two if where in one and one[where] != two[where]]
        other = f"{', '.join(two)} instead of {', '.join(one)}"
        differences.append(f"networks: {', '.join(changed)} changed since" if changed else f"networks: {other}")
    for section in ("infer", "postprocessing"):
        was, has = before[section], now[section]
        names = dict.fromkeys((*was, *has))
        differences += [
            f"{section}.{name}={text_of(has.get(name))} instead of {text_of(was.get(name))}"
            for name in names
            if was.get(name) != has.get(name)
        ]
    return differences
