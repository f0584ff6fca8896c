"""Facts that must be equal on all hosts of a job, as short hashes that ranks compare at the start."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

import hasten
from hasten.cache.key import digest
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import RunConfig

_DIGITS = 12
_HOST_SETTINGS = (
    ("data", "source"),
    ("cache", "dir"),
    ("cache", "device"),
    ("cache", "ram"),
    ("prepare", "num_threads"),
)
"""Settings for paths and for the use of a host's resources: they change no weight."""


def start_facts(config: RunConfig, fingerprint: Fingerprint, *, cases: Iterable[str] = ()) -> dict[str, str]:
    """Name to value, for `consensus.require_same`. cases: ids of all cases, in order."""
    data = {"fingerprint": dataclasses.asdict(fingerprint), "cases": list(cases)}
    return {
        "hasten's code": f"{hasten.__version__} ({code_hash()})",
        "torch": torch.__version__,
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "the settings": settings_hash(config),
        "the data": f"{fingerprint.num_cases} cases ({digest(data)[:_DIGITS]})",
    }


def code_hash(folder: Path | None = None) -> str:
    """Hash of the names and contents of all Python files of the package (or of `folder`)."""
    root = folder or Path(hasten.__file__).parent
    code = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        code.update(f"{path.relative_to(root)}\0".encode())
        code.update(hashlib.sha256(path.read_bytes()).digest())
    return code.hexdigest()[:_DIGITS]


def settings_hash(config: RunConfig) -> str:
    """Hash of all settings except those that may differ between hosts."""
    tree = dataclasses.asdict(config)
    for section, name in _HOST_SETTINGS:
        del tree[section][name]
    del tree["observe"]
    return digest(tree)[:_DIGITS]
