"""A device of torch's that stands in for Apple's MPS on a machine without one. Only in a process of its own."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch

NAME = "standin"
SOURCE = Path(__file__).with_name("device.cpp")


def add_stand_in(folder: Path) -> torch.device:
    """Compile the device into `folder`, which takes half a minute, and add it to torch and to Hasten, as an MPS."""
    from torch.amp import grad_scaler
    from torch.utils.cpp_extension import load

    from hasten import devices

    folder.mkdir(exist_ok=True)
    torch.utils.rename_privateuse1_backend(NAME)
    load("stand_in", [str(SOURCE)], extra_cflags=["-O0"], build_directory=str(folder), is_python_module=False)
    torch._register_device_module(NAME, _module())
    torch.utils.generate_methods_for_privateuse1_backend()
    devices._KINDS[NAME] = devices._KINDS["mps"]
    grad_scaler.torch = _Torch(torch.__name__)  # type: ignore[attr-defined]
    return torch.device(NAME)


class _Torch(types.ModuleType):
    """torch as its scaler of losses sees it, which spares the device named mps:0 its float64: here that is ours."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, name: str) -> torch.device:
        return torch.device(NAME, 0) if name == "mps:0" else torch.device(name)


def _module() -> Any:
    module = types.ModuleType(f"torch.{NAME}")
    facts: dict[str, Any] = {
        "device_count": lambda: 1, "is_available": lambda: True, "is_initialized": lambda: True,
        "current_device": lambda: 0, "synchronize": lambda: None, "empty_cache": lambda: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(), "set_rng_state": lambda state, device=None: None,
        "manual_seed_all": lambda seed: None, "_is_in_bad_fork": lambda: False,
        "get_amp_supported_dtype": lambda: [torch.float16],
    }  # fmt: skip
    vars(module).update(facts)
    return module
