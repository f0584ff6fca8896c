"""Checks across ranks before training: no rank failed, and all ranks run the same code, data and settings."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed

import hasten
from hasten.cache.key import digest
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import RunConfig
from hasten.distribute.world import World

T = TypeVar("T")

_DIGITS = 12
_HOST_SETTINGS = (
    ("data", "source"),
    ("cache", "dir"),
    ("cache", "device"),
    ("cache", "ram"),
    ("prepare", "num_threads"),
)
"""Settings for paths and for the use of a host's resources: they change no weight."""


class JobError(ValueError):
    """A user's mistake that this rank reports for the whole job."""


class OtherRankFailed(SystemExit):
    """Another rank reports what went wrong; this one exits with the same code and prints nothing."""

    def __init__(self) -> None:
        super().__init__(2)


def run_on_all_ranks(world: World, work: Callable[[], T], *, group: distributed.ProcessGroup | None = None) -> T:
    """Run `work()` on every rank. A ValueError on any rank ends all ranks; the lowest such rank raises its own.

    Other exceptions are raised where they happen; the launcher then ends the job.
    """
    if world.size == 1:
        return work()
    failure: ValueError | None = None
    try:
        result = work()
    except ValueError as error:
        failure = error
    try:
        messages = _gather(None if failure is None else str(failure), group)
    except RuntimeError:
        # The other ranks have ended, or wait elsewhere until they time out: raise the error that they would have got.
        if failure is not None:
            raise failure from None
        raise
    failed = [rank for rank, message in enumerate(messages) if message is not None]
    if not failed:
        return result
    if failure is None or world.rank != failed[0]:
        raise OtherRankFailed
    if len(failed) < world.size:
        raise JobError(f"{failure} (on {world}; {len(failed)} of {world.size} ranks failed)") from failure
    raise JobError(str(failure)) from failure


def broadcast_from_rank0(world: World, value: T | None, *, group: distributed.ProcessGroup | None = None) -> T:
    """Return rank 0's value on every rank; the values of the others are ignored."""
    if world.size == 1:
        return value  # type: ignore[return-value]
    payload = [value]
    distributed.broadcast_object_list(payload, src=0, group=group)
    return payload[0]  # type: ignore[return-value]


def run_on_rank0(world: World, work: Callable[[], T], *, group: distributed.ProcessGroup | None = None) -> T:
    """Run `work()` on rank 0 and return its result on every rank; a ValueError ends all, as in `run_on_all_ranks`."""
    result = run_on_all_ranks(world, lambda: work() if world.first else None, group=group)
    return broadcast_from_rank0(world, result, group=group)


def require_same(world: World, facts: Mapping[str, Any]) -> None:
    """Raise ValueError on one rank, naming host and fact, if the ranks don't hold equal facts (name -> value).

    For the version of the code, the data and the settings, of which two nodes may hold different copies.
    """
    if world.size == 1:
        return
    facts_by_rank = _gather((world.host, {name: str(value) for name, value in facts.items()}), None)
    host0, reference = facts_by_rank[0]
    if not world.first and any(values != reference for _, values in facts_by_rank):
        raise OtherRankFailed
    for rank, (host, values) in enumerate(facts_by_rank):
        for name in {**reference, **values}:
            if values.get(name) != reference.get(name):
                raise JobError(
                    f"{name}: rank {rank} on {host} has {values.get(name)}, and rank 0 on {host0} has "
                    f"{reference.get(name)}; give all nodes the same"
                )


def start_facts(config: RunConfig, fingerprint: Fingerprint, *, cases: Iterable[str] = ()) -> dict[str, str]:
    """Name to value of what must be equal on all hosts, for `require_same`. cases: ids of all cases, in order."""
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


@contextmanager
def local_rank0_first(world: World, group: distributed.ProcessGroup | None) -> Iterator[None]:
    """Run the block on the first rank of each host, then on the others, which find what the first one cached."""
    if world.size == 1:
        yield
        return
    if world.local_rank:
        distributed.barrier(group)
    try:
        yield
    finally:
        if not world.local_rank:
            distributed.barrier(group)


def _gather(value: Any, group: distributed.ProcessGroup | None) -> list[Any]:
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values
