"""Prepared cases kept in memory or on the disk against preparing them for every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from monai import data as monai
from monai import transforms as t

from benchmarks.guide.claim import MONAI, Budget, Guidance, Outcome, apart, judged
from benchmarks.guide.nets import repeated
from hasten.cache.dataset import CacheDataset
from hasten.monai.lmdb import LMDBDataset
from hasten.monai.persistent import PersistentDataset
from hasten.phantoms.organs import write_phantoms

_KEYS = ("image", "label")


def _transforms() -> list[Any]:
    keys = list(_KEYS)
    return [
        t.LoadImaged(keys),
        t.EnsureChannelFirstd(keys),
        t.Orientationd(keys, axcodes="RAS", labels=None),
        t.Spacingd(keys, pixdim=(1.5, 1.5, 2.0), mode=("bilinear", "nearest")),
        t.ScaleIntensityRanged("image", -160, 240, 0, 1, clip=True),
        # Random to MONAI, so that what comes before it is cached; always done, so that the arms can be compared.
        t.RandFlipd(keys, prob=1.0, spatial_axis=0),
    ]


@contextmanager
def _cases(budget: Budget) -> Iterator[tuple[Path, list[dict[str, str]]]]:
    """A folder that goes with the block, and the files of phantoms in it."""
    with TemporaryDirectory(prefix="hasten-guide-") as name:
        folder = Path(name)
        shape = (budget.size(32, 8), budget.size(128, 16), budget.size(128, 16))
        write_phantoms(folder / "data", num_cases=budget.size(4, 2), shape=shape)
        images = sorted((folder / "data" / "imagesTr").glob("*.nii.gz"))
        labels = folder / "data" / "labelsTr"
        yield folder, [{"image": str(image), "label": str(labels / image.name)} for image in images]


def _epoch(dataset: Any) -> list[list[torch.Tensor]]:
    items = [dataset[index] for index in range(len(dataset))]
    return [[torch.as_tensor(item[key]) for key in _KEYS] for item in items]


def _compared(budget: Budget, datasets: dict[str, Any], *, base: str, epochs: int = 1, **how: Any) -> Outcome:
    arms = {name: repeated(partial(_epoch, dataset), epochs) for name, dataset in datasets.items()}
    results = [_epoch(dataset) for dataset in datasets.values()]
    difference = max(apart(results[0], result) for result in results[1:])
    return judged(budget.compare(arms, base=base), difference=difference, tolerance=1e-5, **how)


def _cached(budget: Budget) -> Outcome:
    with _cases(budget) as (folder, items):
        datasets = {
            "uncached": monai.Dataset(items, _transforms()),
            "MONAI's CacheDataset": monai.CacheDataset(items, _transforms(), num_workers=1, progress=False),
            "MONAI's PersistentDataset": monai.PersistentDataset(items, _transforms(), folder / "monai"),
            "Hasten's CacheDataset": CacheDataset(items, _transforms(), num_workers=1, progress=False),
            "Hasten's PersistentDataset": PersistentDataset(items, _transforms(), folder / "hasten"),
        }
        return _compared(budget, datasets, base="uncached", note="epochs after the first")


def _lmdb_cache(budget: Budget) -> Outcome:
    with _cases(budget) as (folder, items):
        datasets = {
            "MONAI, memory": monai.CacheDataset(items, _transforms(), num_workers=1, progress=False),
            "MONAI, LMDB": monai.LMDBDataset(items, _transforms(), folder / "monai", progress=False),
            "Hasten, LMDB": LMDBDataset(items, _transforms(), folder / "hasten", num_workers=1),
        }
        return _compared(
            budget,
            datasets,
            base="MONAI, memory",
            epochs=budget.size(10, 1),
            advised=("MONAI, LMDB",),
            wanted="not slower",
            note="files read again come from the system's page cache",
        )


CLAIMS = (
    Guidance(
        name="cached",
        claim="Cases prepared once and kept make an epoch faster than preparing them each time",
        source=f"{MONAI}: Cache I/O and transforms data",
        published="10x; 30 epochs of the spleen task 2810 s, CacheDataset 370 s, PersistentDataset 255 s (figure)",
        run=_cached,
        setup_s=3.0,
    ),
    Guidance(
        name="lmdb-cache",
        claim="Prepared cases in LMDB are as fast as in memory (CacheDataset)",
        source=f"{MONAI}: Cache I/O and transforms data; Cache intermediate outcomes into persistent storage",
        published="similar",
        needs="the package lmdb",
        run=_lmdb_cache,
        setup_s=2.0,
    ),
)
