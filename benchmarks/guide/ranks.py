"""Two training processes that wait for orders: `python -m benchmarks.guide.ranks RANK STORE DEVICE QUICK`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.guide.nets import loss_of, values
from benchmarks.harness import child_environment
from hasten.observe.cores import usable_cores

WORLD = 2
_PATIENCE_S = 120.0
"""After which processes that still run are ended."""
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
def ranks(folder: Path, *, device: str, quick: bool) -> Iterator[Order]:
    """The processes as a call: order("step", steps) has both train, and gives some of the gradients that they end with.

    Raises RuntimeError with what a process that failed had to say.
    """
    command = (sys.executable, "-m", "benchmarks.guide.ranks")
    threads = max(1, usable_cores() // WORLD)
    environment = child_environment() | {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    errors = [(folder / f"rank{rank}.log").open("w+") for rank in range(WORLD)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), device, str(int(quick))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors[rank],
            env=environment,
            text=True,
        )
        for rank in range(WORLD)
    ]
    watch = threading.Timer(_PATIENCE_S, _end, [processes])
    watch.daemon = True
    watch.start()
    try:
        yield lambda *order: _ordered(processes, errors, order)
    finally:
        watch.cancel()
        _end(processes)
        for process in processes:
            process.communicate()
        for error in errors:
            error.close()


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


def _ordered(
    processes: Sequence[subprocess.Popen[str]], errors: Sequence[IO[str]], order: Sequence[Any]
) -> list[float]:
    answers = []
    for process in processes:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            break
    for process, error in zip(processes, errors, strict=True):
        assert process.stdout is not None
        answer = process.stdout.readline()
        if not answer:
            error.seek(0)
            raise RuntimeError(f"a training process ended: {error.read()[-400:].strip() or 'it said nothing'}")
        answers.append(json.loads(answer))
    return answers[0]


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


def main(rank: int, store: str, device: str, quick: bool) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # What a library prints must not come between the answers.
    place = f"cuda:{rank}" if device == "cuda" else "cpu"
    torch.distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD
    )
    wrapped = DistributedDataParallel(network(quick=quick).to(place))
    image = images(quick=quick).chunk(WORLD)[rank].to(place)
    for line in sys.stdin:
        _, steps, micro, sync_each = json.loads(line)
        for _ in range(steps):
            step(wrapped, image, micro=micro, sync_each=sync_each)
        json.dump(sample_of(wrapped), answers)
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "1")
