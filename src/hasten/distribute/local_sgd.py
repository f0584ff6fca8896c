"""Local SGD: every process trains by itself; every few steps the weights are averaged in the background.

Local SGD (S. Stich, "Local SGD converges fast and communicates little", ICLR 2019, arXiv:1805.09767) with delayed
averaging (Q. Zhou et al., "DaSGD", 2020, arXiv:2006.00441), for links too slow for gradients at every step:

- after every `average_every`-th step a rank copies its weights, s, and an all-reduce of the copies begins;
- it has `average_every - 1` steps' time. Then each rank takes up the mean m of the copies and keeps what it did since:
  weights = m + (weights - s).

So no weight is older than `average_every` steps, the step at which a mean is taken up does not depend on how fast the
link is, and a run is the same every time. With `average_every=1` the mean is taken up at once: with plain SGD that is
DDP. The mean over ranks of the weights is the same whether a mean is under way or has been taken up, which is why
validating needs only to average once more.

torch's PeriodicModelAverager is not used: it waits for the link, counts steps from where the process was started,
leaves buffers out, and gives the weights back without their memory format.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils._pytree import tree_leaves

from hasten.config.schema import RunConfig
from hasten.distribute.ddp import broadcast_weights
from hasten.distribute.group import message_device
from hasten.distribute.strategy import Strategy


class LocalSgd(Strategy):
    """Local SGD with delayed averaging, as above.

    Gradient norm, clipping and updates left out are a rank's own, and so are moments and the weights' average, between
    two checkpoints. A checkpoint holds the means over ranks of weights, of their average and of the optimizer's
    moments, and every rank continues from them, so that a resumed run equals one that was not stopped. The mean of
    the momenta is the momentum of the mean gradient; second moments are near enough to have one. Counts of steps and
    fp16's loss scale are rank 0's.
    """

    name = "local_sgd"
    splits_batch = True
    same_loss = False

    _network: nn.Module
    _average: nn.Module | None
    _optimizer: torch.optim.Optimizer
    _pending: _Mean | None = None

    def mistakes(self, config: RunConfig) -> list[str]:
        """Settings that would need communication at every step."""
        messages = []
        if config.distribute.sync_norm:
            messages.append("distribute.sync_norm: local_sgd sends nothing at most steps; set it to false, or use ddp")
        if config.distribute.gradients != "fp32":
            messages.append(
                f"distribute.gradients: local_sgd sends weights, not gradients, and in full; set it to fp32 instead of "
                f"{config.distribute.gradients}, or use ddp"
            )
        return messages

    def place(self, network: nn.Module, average: nn.Module | None) -> tuple[nn.Module, nn.Module | None]:
        broadcast_weights(network, average)
        self._network, self._average = network, average
        return network, average

    def share_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._optimizer = optimizer
        return optimizer

    @torch.no_grad()
    def after_step(self, index: int) -> None:
        """Begin a mean or apply it, by the number of steps since the start of the run."""
        steps, every = index + 1, self.config.average_every
        if steps % every == 0:
            self._pending = _Mean(self._network.parameters())
        if (steps + 1) % every == 0 or every == 1:
            self._apply_pending()

    @torch.no_grad()
    def whole(self, module: nn.Module) -> nn.Module:
        """A copy with the means over ranks of its weights and buffers; the training state is not changed."""
        clone = copy.deepcopy(module)
        average_over_ranks([*clone.parameters(), *clone.buffers()])
        return clone

    @torch.no_grad()
    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The means over ranks, which this process adopts too: the tensors of `state` are the live ones."""
        self._apply_pending()
        average_over_ranks(self._all())
        return state

    def scatter_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state as it is, for every rank; a pending mean belongs to the old state and is dropped."""
        self._drop()
        return state

    def close(self) -> None:
        self._drop()

    def _apply_pending(self) -> None:
        if self._pending is not None:
            self._pending.add_to(self._network.parameters())
            self._pending = None

    def _drop(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def _all(self) -> list[Tensor]:
        """All tensors that differ between ranks, in an order that is the same on all of them."""
        modules = [module for module in (self._network, self._average) if module is not None]
        tensors: list[Tensor] = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        state = {name: value for name, value in self._optimizer.state_dict().items() if name != "param_groups"}
        return [*tensors, *(value for value in tree_leaves(state) if isinstance(value, Tensor))]


class _Mean:
    """The mean over ranks of a copy of the weights, as a pending all-reduce."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._copies = [torch.cat([tensor.flatten() for tensor in each]) for each in _by_kind(weights)]
        self._sums = [flat.clone() for flat in self._copies]
        self._works = [distributed.all_reduce(flat, async_op=True) for flat in self._sums]

    def wait(self) -> None:
        for work in self._works:
            assert work is not None
            work.wait()

    def add_to(self, weights: Iterable[Tensor]) -> None:
        """Weights become the mean plus what was added to them since they were copied."""
        self.wait()
        for tensors, flat, before in zip(_by_kind(weights), self._sums, self._copies, strict=True):
            flat.div_(distributed.get_world_size())
            means, copies = (_unflatten_dense_tensors(each, tensors) for each in (flat, before))
            for tensor, mean, then in zip(tensors, means, copies, strict=True):
                # In this order: where nothing was added since, the mean itself, the same on all ranks.
                tensor.copy_(mean + (tensor - then))


@torch.no_grad()
def average_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Tensors of the same shapes on all ranks become their means, in place and in one message per type.

    Whole numbers and () tensors, which count something, become rank 0's.
    """
    for each in _by_kind(tensors):
        flat = _flatten_dense_tensors(each)
        message = flat.to(message_device())
        if _is_mean(each[0]):
            distributed.all_reduce(message)
            message.div_(distributed.get_world_size())
        else:
            distributed.broadcast(message, src=0)
        for tensor, value in zip(each, _unflatten_dense_tensors(message.to(flat.device), each), strict=True):
            tensor.copy_(value)


def _is_mean(tensor: Tensor) -> bool:
    return tensor.ndim > 0 and tensor.is_floating_point()


def _by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors in groups, each of which fits into one message and is averaged or not; in the order given."""
    groups: defaultdict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.dtype, tensor.device, _is_mean(tensor)].append(tensor.detach())
    return list(groups.values())
