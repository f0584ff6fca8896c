"""The strategy that a run's settings name, for its number of processes. A module is imported where it is used alone."""

from __future__ import annotations

from hasten.config.schema import DistributeConfig
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World


def build_strategy(config: DistributeConfig, world: World) -> Strategy:
    """The strategy of `config.strategy`. The process group, where there is one, has been joined.

    Raises ValueError for one that the number of processes does not allow.
    """
    name = config.strategy
    if name == "auto":
        name = "ddp" if world.size > 1 else "single"
    if name == "single" and world.size > 1:
        raise ValueError(
            f"distribute.strategy=single: {world.size} processes were started, which would all train the same; "
            "use ddp, or start one"
        )
    if world.size == 1 and name not in ("single", "dp"):
        # A run of one process is the same in any strategy, so scripts and settings need no change.
        name = "single"
    match name:
        case "single":
            return Strategy(world, config)
        case "dp":
            from hasten.distribute.dp import Dp

            return Dp(world, config)
        case "ddp":
            from hasten.distribute.ddp import Ddp

            return Ddp(world, config)
        case "fsdp":
            from hasten.distribute.fsdp import Fsdp

            return Fsdp(world, config)
        case "pipeline":
            from hasten.distribute.pipeline import Pipeline

            return Pipeline(world, config)
        case "horovod":
            from hasten.distribute.horovod import Horovod

            return Horovod(world, config)
