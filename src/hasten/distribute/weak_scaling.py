"""A run's settings on more processes when each of them keeps the batch of a single one (weak scaling)."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from hasten.config.schema import RunConfig

Config = TypeVar("Config", bound=RunConfig)


def weakly_scaled(config: Config, world: int, batch: int) -> Config:
    """`config` with `world` times its batch, a learning rate in proportion, and steps for as many epochs as before.

    batch: its sample.batch_size. Steps and intervals that are open stay so.
    """
    if world == 1:
        return config
    train = config.train
    return dataclasses.replace(
        config,
        sample=dataclasses.replace(config.sample, batch_size=batch * world),
        train=dataclasses.replace(
            train,
            learning_rate_batch=train.learning_rate_batch or batch,
            steps=_scaled_steps(train.steps, world),
            validate_every=_scaled_steps(train.validate_every, world),
            checkpoint_every=_scaled_steps(train.checkpoint_every, world),
        ),
    )


def _scaled_steps(steps: int | None, world: int) -> int | None:
    return None if steps is None else -(-steps // world)
