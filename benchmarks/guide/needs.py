"""What a claim needs of the machine, and the words for its absence."""

from __future__ import annotations

import importlib.util

import torch

from hasten.observe.cores import usable_cores


def missing(needs: str) -> str:
    """Why a claim can't be measured here, such as `needs a CUDA device`; empty if it can. needs: see `Guidance`."""
    match needs:
        case "":
            return ""
        case "cuda":
            return "" if torch.cuda.is_available() else "needs a CUDA device"
        case "two GPUs":
            count = torch.cuda.device_count()
            return "" if count >= 2 else f"needs two CUDA devices, {count} found"
        case "two cores":
            return "" if usable_cores() >= 2 else "needs two processor cores"
        case "lmdb":
            return "" if importlib.util.find_spec("lmdb") else "needs the package lmdb: pip install 'hasten[lmdb]'"
    raise AssertionError(needs)


def device() -> str:
    """Where claims that can be measured on any device are."""
    return "cuda" if torch.cuda.is_available() else "cpu"
