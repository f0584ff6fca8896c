"""Saves and restores the states of torch's random generators."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from hasten.devices import accelerator_in_use, device_count, kind_of


def random_state_kept(device: torch.device) -> AbstractContextManager[None]:
    """Context manager: random draws inside it, on the host or on `device`, do not change later ones."""
    if not kind_of(device).accelerator:
        return torch.random.fork_rng([])  # not by the type's name: for "meta" torch would keep nothing
    return torch.random.fork_rng([device], device_type=device.type)


def all_random_states_kept(device: torch.device) -> AbstractContextManager[None]:
    """Like `random_state_kept`, for a block that seeds torch, which reaches every GPU."""
    where = device if kind_of(device).accelerator else accelerator_in_use()
    if where is None:
        return torch.random.fork_rng([])
    return torch.random.fork_rng(range(device_count(where.type)), device_type=where.type)


def random_states(device: torch.device) -> list[Tensor]:
    """States of torch's generators, the host's and that of a GPU, (n,) uint8 each, on the host."""
    modules = [torch.get_device_module(device)] if kind_of(device).accelerator else []
    return [torch.get_rng_state(), *(module.get_rng_state(device) for module in modules)]


def set_random_states(states: list[Tensor], device: torch.device) -> None:
    """Set torch's generators to the states of `random_states`, (n,) uint8 each.

    The next replay of a captured graph draws from there.
    """
    host, *gpu = states
    torch.set_rng_state(host)
    if gpu and kind_of(device).accelerator:
        torch.get_device_module(device).set_rng_state(gpu[0], device)
