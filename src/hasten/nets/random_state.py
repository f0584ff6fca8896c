"""Trying something out without moving torch's generators."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def random_state_kept(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn inside, on the host or on `device`, changes no draw after it."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
