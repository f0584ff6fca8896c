"""Two training processes that wait for orders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.guide.nets import loss_of, values
from hasten.observe.cores import usable_cores

WORLD = 2
_PATIENCE_S = 120.0
"""Seconds after which an order has failed."""
Order = Callable[..., list[float]]


def network(*, quick: bool) -> nn.Module:
    """Convolutions without a norm, whose gradients over half a batch each are those of the whole."""
    torch.manual_seed(0)
    widths = (1, 4, 8, 8) if quick else (1, 32, 128, 256)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv3d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def images(*, quick: bool) -> Tensor:
    """The batch of all processes together."""
    return values(2 * WORLD, 1, *[8 if quick else 32] * 3)


@contextmanager
def ranks(*, device: str, quick: bool) -> Iterator[Order]:
    """The processes as a call: order(steps, micro, sync_each) has both train, and gives some of their last gradients.

    Raises RuntimeError with what a process that failed had to say.
    """
    context, folder = multiprocessing.get_context("spawn"), TemporaryDirectory(prefix="hasten-guide-")
    ours, theirs = zip(*(context.Pipe() for _ in range(WORLD)), strict=True)
    processes = [
        context.Process(target=_train, args=(rank, theirs[rank], f"{folder.name}/store", device, quick), daemon=True)
        for rank in range(WORLD)
    ]
    for process in processes:
        process.start()

    def order(*what: Any) -> list[float]:
        for pipe in ours:
            pipe.send(what)
        answer = ours[0].recv() if ours[0].poll(_PATIENCE_S) else "it did not answer"
        if isinstance(answer, str):
            raise RuntimeError(f"a training process ended: {answer}")
        for pipe in ours[1:]:
            pipe.recv()
        return list(answer)

    try:
        yield order
    finally:
        for process in processes:
            process.kill()
            process.join()
        folder.cleanup()


def _train(rank: int, pipe: Any, store: str, device: str, quick: bool) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(max(1, usable_cores() // WORLD))
    try:
        place = f"cuda:{rank}" if device == "cuda" else "cpu"
        backend = "nccl" if device == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=WORLD)
        wrapped = DistributedDataParallel(network(quick=quick).to(place))
        image = images(quick=quick).chunk(WORLD)[rank].to(place)
        while True:
            steps, micro, sync_each = pipe.recv()
            for _ in range(steps):
                step(wrapped, image, micro=micro, sync_each=sync_each)
            pipe.send(sample_of(wrapped))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def sample_of(network: nn.Module) -> list[float]:
    """Some of the gradients."""
    return [float(value) for weight in network.parameters() for value in weight.grad.flatten()[:8]]  # type: ignore[union-attr]


def step(network: nn.Module, image: Tensor, *, micro: int = 1, sync_each: bool = True) -> None:
    """Gradients of a batch in `micro` pieces, added up over the processes after each or only after the last."""
    network.zero_grad(set_to_none=True)
    for place, piece in enumerate(image.chunk(micro)):
        quiet = not sync_each and place < micro - 1 and isinstance(network, DistributedDataParallel)
        with network.no_sync() if quiet else nullcontext():  # type: ignore[operator]
            (loss_of(network, piece) / micro).backward()
