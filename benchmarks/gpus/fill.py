"""Filling the cache with CT-sized phantoms, against MONAI's, and the way of the prepared cases to the device.

Fills are processes of their own in turns, with the files in the page cache; their imports are not counted (as in
`benchmarks.cache`). MONAI prepares with all cores as threads what its fast training caches; Hasten stores as much
in a file besides. `arena` figures are GB/s of prepared cases, from the page-locked and the pageable arena in host
memory, and from its file as a second run finds it, checksums included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.caches.fill import filled, warm_page_cache
from benchmarks.caches.outcome import SPACING
from benchmarks.data import CT, QUICK_CT
from benchmarks.gpus.sheet import Sheet
from benchmarks.gpus.timing import seconds_of
from benchmarks.harness import Claim, interleave, median_ratio
from benchmarks.tasks import prepare_config
from hasten.cache.build import get_arena
from hasten.cases.sources import load_case_set
from hasten.config.schema import CacheConfig
from hasten.observe.cores import usable_cores
from hasten.phantoms.organs import write_phantoms


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    cases, size = (2, QUICK_CT) if sheet.quick else (max(4, min(16, usable_cores())), CT)
    with tempfile.TemporaryDirectory() as folder:
        data, cache = Path(folder) / "data", CacheConfig(dir=str(Path(folder) / "cache"))
        write_phantoms(data, num_cases=cases, num_threads=usable_cores(), **size)  # type: ignore[arg-type]
        warm_page_cache(data)
        sheet.tell("cases", {"number": cases, **size})
        sheet.attempt("arena", 5, lambda: arena(sheet, data, cache))
        sheet.attempt("fills", 10, lambda: fills(sheet, data))


def fills(sheet: Sheet, data: Path) -> None:
    logs: dict[str, list[dict[str, Any]]] = {"monai": [], "hasten": []}
    arms = {name: partial(filled, name, data, log) for name, log in logs.items()}
    done: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(1 if sheet.quick else 5):
        if done["monai"] and sheet.left() < 12:
            sheet.skip("more fills", "no time")
            break
        for name, values in interleave(arms, rounds=1, warmup=0).items():
            done[name] += values
        sheet.keep({f"fill, {name}_s": values for name, values in done.items()})
    sheet.tell("fills", logs)
    ratio = median_ratio(done["monai"], done["hasten"])
    sheet.claim(Claim.at_least("filling: MONAI's CacheDataset takes this many times Hasten's seconds", ratio, 3))


def arena(sheet: Sheet, data: Path, cache: CacheConfig) -> None:
    case_set, prepare = load_case_set(data), prepare_config("ct", SPACING)
    host = get_arena(case_set, prepare, cache)
    device, rounds = sheet.device, 2 if sheet.quick else 5
    size = host.num_bytes
    sheet.tell("arena", {"bytes": size, "home without a GPU": host.home})
    ram = host.to("cpu", home="ram")
    # A copy of its own each: `to` gives back what lies on the device already.
    pageable = ram.to(device, home="device") if sheet.cuda else ram
    arms: dict[str, Callable[[], object]] = {"pageable memory": lambda: ram.to(device, home="device")}
    kept = CacheConfig(dir=cache.dir, home="device")
    arms["file"] = lambda: get_arena(case_set, prepare, kept, device=str(device))
    times = interleave({name: partial(seconds_of, call, device) for name, call in arms.items()}, rounds)
    sheet.keep({f"arena to the device from {name}_GB/s": [size / value / 1e9 for value in values]
                for name, values in times.items()})  # fmt: skip
    same = torch.equal(pageable.store.values["image"].cpu(), ram.store.values["image"].cpu())
    sheet.claim(Claim.at_most("arena: voxels that differ on the device", float(not same), 0))
