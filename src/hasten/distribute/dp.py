"""torch's DataParallel (one process, a thread for each GPU), as a baseline for comparison."""

from __future__ import annotations

import logging

from torch import nn

from hasten.config.schema import RunConfig
from hasten.devices import device_count, kind_of
from hasten.distribute.strategy import Strategy

log = logging.getLogger(__name__)


class Dp(Strategy):
    """The whole batch in one process; forward and backward are split over all GPUs that it sees, from its own first.

    The loss is that of the whole batch, as all scores come back to the first GPU. In training a batch norm sees the
    share of each GPU, and the running moments that are kept are those of the first.
    """

    name = "dp"

    def mistakes(self, config: RunConfig) -> list[str]:
        """Settings that don't work with threads of one process."""
        train, count = config.train, self.world.size
        begun = f"distribute.strategy: dp is one process for all GPUs, and {count} were started; start one, or use ddp"
        shared = "distribute.sync_norm: dp has no process to share moments with; use ddp, or set it to false"
        compiled = "train.compile: dp copies the network at every step, compiled code can't be; set it to false"
        captured = "train.capture: dp starts threads at every step, which no CUDA graph holds; set it to false"
        wrong: dict[str, bool | None] = {begun: count > 1, shared: config.distribute.sync_norm}
        wrong |= {compiled: train.compile, captured: train.capture}
        return [message for message, holds in wrong.items() if holds]

    def wrap(self, network: nn.Module) -> nn.Module:
        """network: of `place`, on the first GPU."""
        device = next(network.parameters()).device
        count = device_count(device.type) if kind_of(device).streams else 0
        others = [number for number in range(count) if number != device.index]
        if not others:
            log.warning(
                "distribute.strategy=dp: there is nothing to split a batch over on %s; this trains like single", device
            )
            return network
        log.warning(
            "distribute.strategy=dp: every step copies the network to %d GPUs, sends the batch out and the scores back "
            "through %s, and drives all GPUs by threads of one Python interpreter; ddp (hasten launch --nproc %d) does "
            "none of that, and is the faster even on one machine",
            len(others) + 1,
            device,
            len(others) + 1,
        )
        return nn.DataParallel(network, device_ids=[device.index, *others])
