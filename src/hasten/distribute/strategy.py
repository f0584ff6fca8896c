"""The base class of strategies, which define how processes share a training; itself the one of a single process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hasten.config.schema import DistributeConfig, RunConfig
from hasten.distribute.world import World


class Step(Protocol):
    """The part of a training step that a strategy may run in its own way."""

    @property
    def network(self) -> nn.Module:
        """What forward is called on."""
        ...

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        """() loss of a piece, with its graph."""
        ...

    def to_layout(self, image: Tensor) -> Tensor:
        """`image` (B, C, *S) in the memory format of the weights."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """The step's precision, around the network."""
        ...

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """() of (output, label)."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss (), scaled for fp16 where that is the precision."""
        ...


class Strategy:
    """A single process. Subclasses override what differs; a training calls the methods in this order.

    `mistakes`, `place` (network and its average, before the optimizer is built), `share_optimizer`, `wrap` (after
    compiling). Each step: `sync` around each piece with `run_piece` in it, then `total_norm` once. At validations and
    checkpoints: `whole`, `gather_state`, `scatter_state`.
    """

    name = "single"
    splits_batch = False
    """Whether each rank takes its share of every batch; else every rank gets the whole one."""
    same_loss = True
    """Whether a loss may look at all ranks' counts; not where it sees a piece of the batch at a time."""
    whole_network = True
    """Whether each process has all layers; else what `place` returns can be called by `run_piece` only."""

    def __init__(self, world: World, config: DistributeConfig) -> None:
        self.world, self.config = world, config

    def mistakes(self, config: RunConfig) -> list[str]:
        """Settings that the strategy can't do, each as "dotted.path: what is wrong and the remedy"."""
        return []

    def place(self, network: nn.Module, average: nn.Module | None) -> tuple[nn.Module, nn.Module | None]:
        """The modules whose parameters this process updates, with rank 0's values.

        Called before the optimizer is built. Both may be changed in place (sharded) or be cut down to a stage.
        """
        return network, average

    def share_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer as this process runs it; the training uses what is returned."""
        return optimizer

    def wrap(self, network: nn.Module) -> nn.Module:
        """What the step calls forward on. network: what `place` returned first, perhaps compiled."""
        return network

    def sync(self, network: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
        """Context manager for forward and backward of a batch's piece: only the last one's gradients are exchanged."""
        return without_sync(network, last=last)

    def run_piece(self, step: Step, image: Tensor, label: Tensor, share: float) -> Tensor:
        """Forward and backward of a piece, whose loss counts `share`; the detached () loss times that share."""
        loss = step.forward(image, label)
        loss = loss if share == 1.0 else loss * share
        step.backward(loss)
        return loss.detach()

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """() norm of the whole network's gradient, the same on all ranks. gradients: those of this process."""
        return nn.utils.get_total_norm(gradients)

    def whole(self, module: nn.Module) -> nn.Module:
        """A plain module with all weights of `module` (one that `place` returned), for validation. All ranks call it.

        It may be `module` itself: nothing may be changed in it.
        """
        return module

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """`training_state` of this process as a single process would have given it. All ranks call it.

        Complete on rank 0; what other ranks get is not used.
        """
        return state

    def scatter_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """What `restore_state` takes on this process, of a state that a single process would have. All ranks call it.

        state: complete on every rank.
        """
        return state

    def close(self) -> None:
        """Release resources. Called once, also after an error."""


def alone() -> Strategy:
    """The strategy of a single process."""
    return Strategy(World(), DistributeConfig())


def without_sync(network: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Context for one piece of an accumulated batch: ranks exchange gradients only in the last piece."""
    no_sync = getattr(network, "no_sync", None)
    return nullcontext() if last or no_sync is None else no_sync()
