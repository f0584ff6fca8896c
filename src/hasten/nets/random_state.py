"""Saves and restores the states of torch's random generators."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def random_state_kept(device: torch.device) -> AbstractContextManager[None]:
    """Context manager: random draws inside it, on the host or on `device`, do not change later ones."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def all_random_states_kept(device: torch.device) -> AbstractContextManager[None]:
    """Like `random_state_kept`, for a block that seeds torch, which reaches every GPU."""
    with_gpus = device.type == "cuda" or torch.cuda.is_initialized()
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if with_gpus else [])


def random_states(device: torch.device) -> list[Tensor]:
    """States of torch's generators, the host's and that of a GPU, (n,) uint8 each, on the host."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_states(states: list[Tensor], device: torch.device) -> None:
    """Set torch's generators to the states of `random_states`, (n,) uint8 each.

    The next replay of a captured graph draws from there.
    """
    host, *gpu = states
    torch.set_rng_state(host)
    if gpu and device.type == "cuda":
        torch.cuda.set_rng_state(gpu[0], device)
