"""Horovod: every process has the whole network and a share of the batch, and Horovod averages the gradients.

Its core collects what the ranks have ready and sends it in the background, so that a gradient travels as soon as it is
complete, during the rest of the backward pass. Its DistributedOptimizer is not used: it makes the optimizer anew from
its groups, which Muon doesn't allow. `hvd.reducescatter` must never be called: with gloo, every all-reduce
after it takes about a second.

The ranks meet through an HTTP server that `horovodrun` runs. Under any other launcher rank 0 runs one here, and the
process group sends its address to the others.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hasten.config.schema import DistributeConfig, RunConfig
from hasten.devices import kind_of
from hasten.distribute.consensus import broadcast_from_rank0
from hasten.distribute.ddp import placed_whole
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World


class Horovod(Strategy):
    """Data parallel by Horovod. Gradients that are bfloat16 travel as float32, as Horovod has no bfloat16."""

    name = "horovod"
    splits_batch = True

    def __init__(self, world: World, config: DistributeConfig) -> None:
        super().__init__(world, config)
        self._hvd = start(world)
        self._sends = False
        self._sent: list[tuple[Tensor, Tensor, int]] = []
        """Gradient as it lies in memory, what was sent of it, Horovod's handle."""
        self._hooks: list[Any] = []

    def mistakes(self, config: RunConfig) -> list[str]:
        if config.train.capture:
            return ["train.capture: Horovod's exchange can't be part of a CUDA graph; set it to false, or use ddp"]
        return []

    def place(self, network: nn.Module, average: nn.Module | None) -> tuple[nn.Module, nn.Module | None]:
        return placed_whole(network, average, self.config)

    def wrap(self, network: nn.Module) -> nn.Module:
        device = next(network.parameters()).device
        if kind_of(device).accelerator and not (self._hvd.cuda_built() or self._hvd.rocm_built()):
            raise ValueError(
                f"distribute.strategy=horovod: this Horovod was built for CPUs and the network is on {device}; build "
                "it again where torch finds the GPU (`pip uninstall horovod`, then "
                "`HOROVOD_GPU_OPERATIONS=NCCL make horovod`), or use ddp"
            )
        for number, (_, weight) in enumerate(network.named_parameters()):
            if weight.requires_grad:
                self._hooks.append(weight.register_post_accumulate_grad_hook(partial(self._send, number)))
        return network

    @contextmanager
    def sync(self, network: nn.Module, *, last: bool) -> Iterator[None]:
        self._sends = last
        try:
            yield
        finally:
            self._sends = False
        if last:
            for gradient, message, handle in self._sent:
                self._hvd.synchronize(handle)
                if message is not gradient:
                    gradient.copy_(message)
            self._sent.clear()

    def close(self) -> None:
        # Horovod itself runs until the process ends: it can't be started twice.
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._sent.clear()

    def _send(self, number: int, weight: Tensor) -> None:
        """Called by autograd when the gradient of a weight is complete."""
        if not self._sends:
            return
        assert weight.grad is not None
        gradient = _flat(weight.grad)
        wide = torch.float32 if gradient.dtype == torch.bfloat16 else gradient.dtype
        message = gradient.to(torch.float16 if self.config.gradients == "fp16" else wide)
        handle = self._hvd.allreduce_async_(message, name=f"gradient.{number}", op=self._hvd.Average)
        self._sent.append((gradient, message, handle))


def _flat(gradient: Tensor) -> Tensor:
    """A dense tensor as its memory lies, (N,), a view: ranks agree on memory formats, and Horovod knows only one."""
    if gradient.is_contiguous():
        return gradient.detach().view(-1)
    order = sorted(range(gradient.ndim), key=gradient.stride, reverse=True)
    return gradient.detach().permute(order).view(-1)


def load() -> ModuleType:
    """Import `horovod.torch`. Raises ValueError that says how to install it."""
    try:
        return importlib.import_module("horovod.torch")
    except ImportError as error:
        raise ValueError(
            f"distribute.strategy=horovod: horovod.torch can't be imported ({error}); build it for this torch by "
            "`make horovod` in Hasten's repository (5 minutes, needs cmake and g++), or use ddp"
        ) from error


def start(world: World) -> ModuleType:
    """`horovod.torch`, initialised for the ranks of `world`. The process group has been joined.

    Raises ValueError if it is not there, or has other ranks.
    """
    hvd = load()
    if not hvd.is_initialized():
        if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ and world.size > 1:
            os.environ.update(_rendezvous_variables(world))
        _initialise(hvd)
    if (hvd.rank(), hvd.size()) != (world.rank, world.size):
        raise ValueError(
            f"distribute.strategy=horovod: Horovod has rank {hvd.rank()} of {hvd.size()}, and the launcher "
            f"({world.launcher}) reports {world}; start the job by `hasten launch`, torchrun or horovodrun alone"
        )
    return hvd


def rendezvous_by_horovod(world: World) -> None:
    """Rendezvous under `horovodrun`, which sets no MASTER_ADDR: rank 0 chooses one and broadcasts it by Horovod."""
    hvd = load()
    if not hvd.is_initialized():
        _initialise(hvd)
    endpoint = None
    if world.first:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            endpoint = (_local_address(), probe.getsockname()[1])
    address, port = hvd.broadcast_object(endpoint, root_rank=0, name="meeting")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)
    interface = os.environ.get("HOROVOD_GLOO_IFACE")
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _initialise(hvd: ModuleType) -> None:
    try:
        hvd.init()
    except RuntimeError as error:
        where = ":".join(os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}", "") for name in ("ADDR", "PORT"))
        raise ValueError(
            f"distribute.strategy=horovod: Horovod could not be started ({error}); check that {where}, where its ranks "
            "meet, can be reached from this host"
        ) from error


def _rendezvous_variables(world: World) -> dict[str, str]:
    """The environment variables that `horovodrun` would have set for this rank, with the rendezvous on rank 0."""
    if not distributed.is_initialized():
        raise ValueError(f"distribute.strategy=horovod: {world} has joined no process group, by which ranks meet")
    port = None
    if world.first:
        # The meeting point, in a thread that lives as long as the process.
        port = importlib.import_module("horovod.runner.http.http_server").RendezvousServer().start()
    port = broadcast_from_rank0(world, port)
    node = world.rank - world.local_rank
    places: list[Any] = [None] * world.size
    distributed.all_gather_object(places, (node, world.local_rank))
    nodes = [other for other, local_rank in places if local_rank == world.local_rank]
    variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(os.environ.get("MASTER_ADDR", "127.0.0.1")),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        # The ranks of a node meet under this name, which two nodes may not share.
        "HOROVOD_HOSTNAME": f"{world.host}.{node}",
        "HOROVOD_RANK": str(world.rank),
        "HOROVOD_SIZE": str(world.size),
        "HOROVOD_LOCAL_RANK": str(world.local_rank),
        "HOROVOD_LOCAL_SIZE": str(world.local_size),
        "HOROVOD_CROSS_RANK": str(nodes.index(node)),
        "HOROVOD_CROSS_SIZE": str(len(nodes)),
    }
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo" if world.local_size == world.size else "")
    return variables | ({"HOROVOD_GLOO_IFACE": interface} if interface else {})


def _local_address() -> str:
    """The address of this host on the network that horovodrun's server is reached by."""
    server = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: the system only chooses a way there.
        probe.connect((server, int(os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "9"))))
        address: str = probe.getsockname()[0]
        return address
