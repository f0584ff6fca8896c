"""DDP: every process has the whole network and a share of the batch; the backward pass averages gradients."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from hasten.config.patterns import first_few
from hasten.config.schema import DistributeConfig
from hasten.devices import kind_of
from hasten.distribute.consensus import run_on_all_ranks
from hasten.distribute.strategy import Strategy
from hasten.nets.surgery.sync_norm import sync_batch_norm

_TOGETHER = 64 * 2**20
"""Bytes of weights per message when a rank broadcasts its own."""
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)
"""What torch calls it from 2.13 on, and before."""


class Ddp(Strategy):
    """torch's DistributedDataParallel.

    Each rank has the moments of its own share in a batch norm, unless `sync_norm`; the running ones that are saved and
    validated with are rank 0's. All else is equal on all ranks, bit for bit.
    """

    name = "ddp"
    splits_batch = True
    _network: nn.Module | None = None
    _checked_unused = False

    def place(self, network: nn.Module, average: nn.Module | None) -> tuple[nn.Module, nn.Module | None]:
        self._network, average = placed_whole(network, average, self.config)
        return self._network, average

    def wrap(self, network: nn.Module) -> nn.Module:
        device, config = next(network.parameters()).device, self.config
        # Buffers are equal without it, except a batch norm's, which may differ during training.
        options: dict[str, Any] = {_SYNC_BUFFERS: False}
        wrapped = DistributedDataParallel(
            network,
            device_ids=[device.index] if kind_of(device).accelerator else None,
            bucket_cap_mb=config.bucket_mb,
            gradient_as_bucket_view=True,
            # `place` has already broadcast the weights.
            init_sync=False,
            **options,
        )
        match config.gradients:
            case "fp16":
                wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
            case "bf16":
                # torch refuses the hook itself without NCCL, though gloo sends bf16 too.
                wrapped.register_comm_hook(None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
        return wrapped

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm () that one process would have.

        Raises ValueError, on one rank, naming parameters without a gradient. torch would report it at the next step, by
        number, when the ranks have already diverged.
        """
        if not self._checked_unused and self._network is not None:
            self._checked_unused = True
            network = self._network
            run_on_all_ranks(self.world, lambda: _require_used(network))
        return super().total_norm(gradients)


def placed_whole(
    network: nn.Module, average: nn.Module | None, config: DistributeConfig
) -> tuple[nn.Module, nn.Module | None]:
    """Both with rank 0's values, and batch norms over all ranks if `config.sync_norm`."""
    if config.sync_norm:
        network = sync_batch_norm(network)
    broadcast_weights(network, average)
    return network, average


@torch.no_grad()
def broadcast_weights(*modules: nn.Module | None) -> None:
    """Parameters and buffers of rank 0 on every rank, in place; each keeps its memory format.

    The modules of all ranks have the same parameters: raises RuntimeError where they don't.
    """
    for module in modules:
        state = () if module is None else (*module.parameters(), *module.buffers())
        tensors = [tensor.detach() for tensor in state]
        if tensors:
            distributed._verify_params_across_processes(_world_group(), tensors, None)
            broadcast_tensors(tensors)


def broadcast_tensors(tensors: list[Tensor], *, source: int = 0) -> None:
    """Tensors of rank `source`, which record no gradient, on every rank, in place and many in a message.

    They are of any shape, the same on all ranks.
    """
    if tensors:
        distributed._broadcast_coalesced(_world_group(), tensors, _TOGETHER, source)


def _world_group() -> distributed.ProcessGroup:
    assert distributed.group.WORLD is not None
    return distributed.group.WORLD


def _require_used(network: nn.Module) -> None:
    unused = [name for name, value in network.named_parameters() if value.requires_grad and value.grad is None]
    if unused:
        raise ValueError(
            f"distribute.strategy=ddp: the loss does not depend on {first_few(unused, 5)}, whose gradients "
            "the other processes would wait for; leave unused layers out of the network or switch off their "
            "requires_grad"
        )
