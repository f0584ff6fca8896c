"""Data loaders: worker processes, threads, pinned memory, copies to the device."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from monai.data import ThreadBuffer
from monai.data import ThreadDataLoader as MonaiThreadDataLoader
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.guide.claim import MONAI, SLIDES, TUNING, Budget, Guidance, Outcome, apart, judged
from benchmarks.guide.nets import blocks, forward_backward, values
from hasten.monai.thread_loader import ThreadDataLoader

_BATCH = 2


class _Files(Dataset[Tensor]):
    """Volumes that are read and unpacked at every access."""

    def __init__(self, paths: list[Path], side: int) -> None:
        self.paths, self.side = paths, side

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        stored = np.frombuffer(gzip.decompress(self.paths[index].read_bytes()), np.int16)
        volume = stored.reshape(1, self.side, self.side, self.side).astype(np.float32)
        return torch.from_numpy((volume - volume.mean()) / volume.std())


class _Kept(Dataset[Tensor]):
    """Volumes that lie in memory, of which a piece is cut."""

    def __init__(self, count: int, side: int) -> None:
        self.volumes = values(count, 1, side, side, side)
        self.piece = side - 4

    def __len__(self) -> int:
        return len(self.volumes)

    def __getitem__(self, index: int) -> Tensor:
        start, stop = index % 4, index % 4 + self.piece
        return self.volumes[index, :, start:stop, start:stop, start:stop].clone()


@contextmanager
def _files(count: int, side: int) -> Iterator[_Files]:
    draw = np.random.default_rng(0)
    with TemporaryDirectory(prefix="hasten-guide-") as folder:
        paths = [Path(folder) / f"{index}.gz" for index in range(count)]
        for path in paths:
            smooth = draw.normal(0, 200, (side, side, side)).cumsum(0).astype(np.int16)
            path.write_bytes(gzip.compress(smooth.tobytes(), 1))
        yield _Files(paths, side)


def _network(budget: Budget) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(1, 8, 3, stride=2), *blocks(8, 1, dims=3)).to(budget.device)


def _epoch(loader: Iterable[Tensor], network: nn.Module, budget: Budget) -> None:
    for batch in loader:
        forward_backward(network, batch.to(budget.device))


def _same(loaders: Iterable[Iterable[Tensor]]) -> float:
    """Greatest difference between the batches of the first loader and those of the others."""
    first, *others = [list(loader) for loader in loaders]
    return max(apart(first, other) for other in others)


def _compared(budget: Budget, loaders: dict[str, Iterable[Tensor]], base: str, note: str = "") -> Outcome:
    """Epochs of each loader. Its workers end with it."""
    network = _network(budget)
    difference = _same(loaders.values())
    arms = {name: partial(_epoch, loader, network, budget) for name, loader in loaders.items()}
    return judged(budget.compare(arms, base=base), difference=difference, note=note)


def _workers(budget: Budget) -> Outcome:
    with _files(budget.size(8, 4), budget.size(56, 8)) as files:
        counts = (0, 1) if budget.quick else (0, 1, 2, 4)
        loaders: dict[str, Iterable[Tensor]] = {
            f"{count} worker{'' if count == 1 else 's'}": DataLoader(
                files, _BATCH, num_workers=count, persistent_workers=count > 0
            )
            for count in counts
        }
        return _compared(budget, loaders, "0 workers", "workers kept over the epochs")


def _thread_loader(budget: Budget) -> Outcome:
    kept = _Kept(budget.size(12, 4), budget.size(52, 12))
    loaders: dict[str, Iterable[Tensor]] = {
        "worker processes": DataLoader(kept, _BATCH, num_workers=budget.size(2, 1), persistent_workers=True),
        "MONAI's ThreadDataLoader": MonaiThreadDataLoader(kept, batch_size=_BATCH, num_workers=0),
        "Hasten's ThreadDataLoader": ThreadDataLoader(kept, batch_size=_BATCH),
    }
    return _compared(budget, loaders, "worker processes")


def _thread_ahead(budget: Budget) -> Outcome:
    with _files(budget.size(8, 4), budget.size(56, 8)) as files:
        plain: DataLoader[Tensor] = DataLoader(files, _BATCH)
        loaders: dict[str, Iterable[Tensor]] = {
            "in the loop": plain,
            "MONAI's ThreadBuffer": ThreadBuffer(plain, buffer_size=1),
            "Hasten's ThreadDataLoader": ThreadDataLoader(files, batch_size=_BATCH),
        }
        return _compared(budget, loaders, "in the loop")


def _async_copies(budget: Budget) -> Outcome:
    side = budget.size(128, 8)
    network = _network(budget)
    pageable = values(_BATCH, 1, side, side, side)
    pinned = pageable.pin_memory() if torch.cuda.is_available() else pageable.clone()
    resident = values(1, 1, *[budget.size(64, 8)] * 3, device=budget.device)

    def step(batch: Tensor, *, non_blocking: bool) -> Tensor:
        forward_backward(network, resident)
        return batch.to(budget.device, non_blocking=non_blocking)

    arms: dict[str, Callable[[], Tensor]] = {
        "waited for": partial(step, pageable, non_blocking=False),
        "asynchronous from pinned memory": partial(step, pinned, non_blocking=True),
    }
    difference = apart(*(arm() for arm in arms.values()))
    return judged(budget.compare(arms, base="waited for"), difference=difference, tolerance=0.0)


CLAIMS = (
    Guidance(
        name="workers",
        claim="Worker processes make an epoch of packed files faster than loading in the loop",
        source=f"{TUNING}: Enable asynchronous data loading; {SLIDES}",
        run=_workers,
        setup_s=2.0,
    ),
    Guidance(
        name="async-copies",
        claim="A copy from pinned memory that isn't waited for hides behind the computation",
        source=f"{TUNING}: Avoid unnecessary CPU-GPU synchronization",
        needs="a CUDA device",
        run=_async_copies,
    ),
    Guidance(
        name="thread-loader",
        claim="With data cached in memory, a thread loads faster than worker processes",
        source=f"{MONAI}: ThreadDataLoader vs. DataLoader",
        run=_thread_loader,
        setup_s=2.0,
    ),
    Guidance(
        name="thread-ahead",
        claim="A thread that makes the next batch during the step makes an epoch faster",
        source="MONAI tutorials: acceleration/threadbuffer_performance",
        published="50.7 s, with ThreadBuffer 31.1 s: 1.63x",
        run=_thread_ahead,
    ),
)
