"""The record of a process, as JSON."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch

from . import on_data
from .session import Session

_COPIED = (
    "assume_cuda", "steps", "step_losses", "shapes", "devices", "autocast", "subclass", "load", "modes", "mode_sites",
    "saves", "copies", "validations", "compiled_functions",
)  # fmt: skip
"""What the record has from the session as it is."""

_SPIN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""Variables that say how OpenMP's threads wait."""


def write(session: Session, ended: str, experiments: dict[str, Any] | None = None) -> None:
    """Write `record-PID.json` into the session's folder, in one piece; never raise because of one odd value."""
    record = gather(session, ended) | ({"experiments": experiments} if experiments else {})
    path = Path(session.out, f"record-{os.getpid()}.json")
    half = path.with_suffix(".half")
    half.write_text(json.dumps(plain(record)), encoding="utf-8")
    half.replace(path)


def gather(session: Session, ended: str) -> dict[str, Any]:
    own_rank, world = rank()
    return {
        "version": 1,
        "pid": os.getpid(),
        "ended": ended,
        "rank": own_rank,
        "world": world,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "cuda_devices": torch.cuda.device_count(),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()),
        "losses": [float(loss) for loss in list(session.losses)],
        "loaders": [_loader(facts) for facts in list(session.loader_facts.values())],
        "optimizers": [_optimizer(optimizer, site) for optimizer, site in list(session.optimizers)],
        "roots": [
            {"type": f"{type(root).__module__}.{type(root).__qualname__}", "site": site}
            for root, site in list(session.roots)
        ],
        "convolutions": session.has_convolutions,
        **{name: list(getattr(session, name).values()) for name in ("reads", "calls", "lines", "sent")},
        "torch_calls": [{"site": s, "function": f, "count": n} for (s, f), n in list(session.torch_calls.items())],
        "opened": [
            {"site": site, "files": len(files), "opens": sum(files.values())}
            for site, files in list(session.opened.items())
        ],
        "nnunet": session.uses.get("nnunet", {}),
        "cores": session.cores,
        "spin": {name: os.environ[name] for name in _SPIN if os.environ.get(name)},
        **{name: copy.copy(getattr(session, name)) for name in _COPIED},
    }


def rank() -> tuple[int, int]:
    """Rank and number of processes that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0") or 0), int(os.environ.get("WORLD_SIZE", "1") or 1)


def _loader(facts: dict[str, Any]) -> dict[str, Any]:
    loader = facts["ref"]()
    entries = {name: value for name, value in facts.items() if name not in ("ref", "fresh", "settings")}
    return entries | (on_data.settings(loader) if loader is not None else facts.get("settings", {}))


def _optimizer(optimizer: Any, site: str) -> dict[str, Any]:
    flags = {name: optimizer.defaults.get(name) for name in ("fused", "foreach", "capturable")}
    size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    return {"type": type(optimizer).__qualname__, "site": site, "weights": size, "tensors": count} | flags


def plain(value: Any) -> Any:
    """`value` in what JSON knows: whatever else it holds as its words, and numbers that aren't finite as None."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
