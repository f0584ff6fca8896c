"""Compiled host kernels, one per costly step and sample size, built once and cached on disk as shared libraries.

torch.compile has a disk cache too, but every process must import and trace again before a hit (2 to 4 seconds). A
library of torch's ahead-of-time compiler loads in milliseconds and needs neither.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hasten
from hasten.augment import build_kernel, channels, maps, op, read
from hasten.augment.build_kernel import Spec, opened
from hasten.augment.chain import ChainOp, Stage, Warp, groups_of
from hasten.augment.colour import ColorJitter
from hasten.augment.host import NOTHING_COMPILED, Kernels
from hasten.augment.noise import GaussianNoise
from hasten.augment.op import ValueOp
from hasten.augment.store import Store
from hasten.cache.key import cache_dir
from hasten.cache.publish import sweep, temporary_for
from hasten.config.schema import CacheConfig
from hasten.files import last_line
from hasten.observe.cores import usable_cores
from hasten.observe.env import required_cxx_compiler
from hasten.sample import constant, gather, random

log = logging.getLogger(__name__)

WORTH_COMPILING = (GaussianNoise, ColorJitter)
"""Operations that run several times faster when compiled; others do not earn back the 15 s of compiling."""
_SECONDS = 300
"""Timeout of the compiler."""


class Built(NamedTuple):
    """The kernels and whether and why they are compiled, by the names of a `Segment`."""

    kernels: Kernels
    compiled: bool
    why: str


def host_kernels(stages: Sequence[Stage], store: Store, folder: Path | None = None) -> Built:
    """Open the kernels of these stages, and build those that `folder` (the cache folder's) lacks.

    Where there is no compiler, or it fails, nothing is compiled, and a warning says so once.
    """
    begin = time.perf_counter()
    where = (folder or cache_dir(CacheConfig())) / "kernels"
    specs = list(_specs(stages, store))
    paths = [where / f"{_digest(spec)}.pt2" for _, spec in specs]
    missing = [(spec, path) for (_, spec), path in zip(specs, paths, strict=True) if not path.exists()]
    try:
        if missing:
            required_cxx_compiler()
            where.mkdir(parents=True, exist_ok=True)
            sweep(where)
            with ThreadPoolExecutor(usable_cores()) as pool:
                list(pool.map(lambda row: _build(*row), missing))
        applied, reads = {}, {}
        for (place, spec), path in zip(specs, paths, strict=True):
            if isinstance(place, int):
                applied[place] = (len(spec.what), _applied(opened(path)))
            else:
                reads[place] = _read(opened(path))
    except (OSError, RuntimeError) as error:
        reason = last_line(error)
        log.warning("the augmentation runs uncompiled: %s", reason)
        return Built(NOTHING_COMPILED, False, f"compiling failed: {reason}")
    seconds = time.perf_counter() - begin
    summary = f"{len(missing)} of {len(specs)} kernels built" if missing else f"{len(specs)} kernels from disk"
    return Built(Kernels(apply=applied, read=reads), bool(specs), f"{summary} in {seconds:.1f} s")


def _specs(stages: Sequence[Stage], store: Store) -> Iterator[tuple[int | tuple[int, str], Spec]]:
    """Place and specification of each kernel."""
    dims = store.spatial_dims
    size = (1, 1, 1)
    covered: set[int] = set()
    dtypes = {key: value.dtype for key, value in store.values.items()}
    for number, stage in enumerate(stages):
        if isinstance(stage, Warp):
            size = stage.out
            for keys in groups_of(stage):
                reading = stage.readings[keys[0]]
                if any(each.op.mode for each in reading.ops):
                    read_keys = tuple((stage.readings[key].mode, store.channels[key], str(dtypes[key])) for key in keys)
                    what = (stage.size, stage.out, reading.padding_mode, read_keys)
                    yield (number, keys[0]), Spec(kind="read", what=what, shape=(), spatial_dims=dims)
            dtypes = {
                key: dtypes[key] if reading.is_label else torch.float32 for key, reading in stage.readings.items()
            }
        elif number not in covered:
            run = _unconditional_run(stages, number)
            covered.update(range(number, number + len(run)))
            if len(run) > 1 or isinstance(stage.op, WORTH_COMPILING):
                ops = tuple(_without_draws(each.op) for each in run) or (_without_draws(stage.op),)
                shape = (store.channels[stage.op.keys[0]], *size[3 - dims :])
                yield stage.position, Spec(kind="apply", what=ops, shape=shape, spatial_dims=dims)


def _unconditional_run(stages: Sequence[Stage], at: int) -> list[ChainOp]:
    """Consecutive operations from `at` on that change every sample, on the same keys: one pass when compiled."""
    run: list[ChainOp] = []
    for stage in stages[at:]:
        if isinstance(stage, Warp) or not isinstance(stage.op, ValueOp) or stage.op.prob < 1:
            break
        if run and stage.op.keys != run[0].op.keys:
            break
        run.append(stage)
    return run


def _without_draws(op: Any) -> Any:
    """The operation without the fields that only affect its draws, which are not compiled in."""
    changes: dict[str, Any] = {"keys": (), "prob": 1.0}
    if isinstance(op, GaussianNoise):
        changes["std"] = (0.0, 1.0)
    return dataclasses.replace(op, **changes)


def _digest(spec: Spec) -> str:
    """Hash of everything that a library depends on: operations, source, compiler and processor."""
    modules: list[Any] = [build_kernel, constant, gather, maps, op, random, read]
    if spec.kind == "apply":
        modules += [sys.modules[type(each).__module__] for each in spec.what]
        modules.append(channels)
    identity = (hasten.__version__, torch.__version__, torch.backends.cpu.get_cpu_capability(), spec)
    digest = hashlib.sha256(repr(identity).encode())
    for module in modules:
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:24]


def _build(spec: Spec, path: Path) -> None:
    """Raises RuntimeError with the compiler's message, and OSError."""
    temporary = temporary_for(path)
    # The package's name must end so.
    output = temporary.with_name(temporary.name + ".pt2")
    command = [sys.executable, "-m", "hasten.augment.build_kernel", os.fsdecode(output)]
    try:
        process = subprocess.run(command, input=pickle.dumps(spec), capture_output=True, timeout=_SECONDS, check=False)
        if process.returncode:
            stderr = process.stderr.decode(errors="replace").strip()
            raise RuntimeError(stderr or f"the process that compiles and loads it ended with {process.returncode}")
        output.replace(path)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the compiler took more than {_SECONDS} s") from error
    finally:
        output.unlink(missing_ok=True)


def _applied(run: Callable[[list[Tensor]], list[Tensor]]) -> Callable[..., Tensor]:
    def apply(image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        return run([image.contiguous(), *(drawn[name].contiguous() for name in sorted(drawn))])[0]

    return apply


def _read(run: Callable[[list[Tensor]], list[Tensor]]) -> Callable[..., list[Tensor]]:
    # The library assumes contiguous inputs.
    return lambda *arguments: run([each.contiguous() for each in arguments])
