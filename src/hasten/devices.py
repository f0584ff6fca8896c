"""What a device can do: the one module that knows torch's types of devices by name.

torch calls NVIDIA's cards and AMD's (a ROCm build) `cuda`, Apple's `mps` and Intel's `xpu`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import psutil
import torch

from hasten.observe.cores import MPS_FALLBACK, available_memory

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceKind:
    """What the devices of one type have. Without arguments: an accelerator that has nothing but float32."""

    accelerator: bool = True
    """Whether work is queued on it, so that the host waits where it reads a value."""
    nvidia: bool = False
    """Compute capabilities, NVML, and bf16 products with float32 results; what was measured on its cards holds."""
    streams: bool = False
    """Streams, events, page-locked host memory, a context for each device and an activity of the profiler, as
    `torch.cuda` has them."""
    graphs: bool = False
    """Graphs of `torch.cuda`. Each is compared with what it was captured from before it is used."""
    triton: bool = False
    """Triton may be tried. Its probe compares values before a kernel is used."""
    cudnn: bool = False
    """`torch.backends.cudnn` and `.cuda.matmul` choose algorithms and TF32."""
    memory_stats: bool = False
    """Counters of torch's allocator: what is taken, and the peak."""
    float64: bool = False
    channels_last: bool = False
    """Whether torch runs 2-D and 3-D convolutions in that memory format."""
    precisions: tuple[Precision, ...] = ("fp32",)
    """Precisions of a step, the reference first."""
    backend: str = ""
    """Backend of torch.distributed; empty if several processes can't share a step."""
    fallback: str = ""
    """Environment variable by which the host computes what torch lacks there, if it is set before torch is loaded."""


_ALL: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
_HOST = DeviceKind(accelerator=False, float64=True, channels_last=True, precisions=_ALL, backend="gloo")
_CUDA = DeviceKind(
    nvidia=True, streams=True, graphs=True, triton=True, cudnn=True, memory_stats=True, float64=True,
    channels_last=True, precisions=_ALL, backend="nccl",
)  # fmt: skip
_KINDS = {
    "cpu": _HOST,
    "meta": _HOST,
    "cuda": replace(_CUDA, nvidia=not torch.version.hip),
    "mps": DeviceKind(precisions=("fp32", "fp16"), fallback=MPS_FALLBACK),
    "xpu": DeviceKind(
        streams=True, memory_stats=True, channels_last=True, precisions=("fp32", "bf16", "fp16"), backend="xccl",
    ),
}  # fmt: skip


def kind_of(device: torch.device) -> DeviceKind:
    """What the device's type has; of a type that is not known, nothing but float32."""
    return _KINDS.get(device.type) or DeviceKind()


def device_count(name: str = "cuda") -> int:
    """How many devices of a type of accelerator this process sees."""
    module = torch.get_device_module(name)
    return int(module.device_count()) if module.is_available() else 0


def automatic() -> torch.device:
    """What `auto` takes: a GPU of NVIDIA's or AMD's, else the host. The others were not tried on a device."""
    return torch.device("cuda" if device_count() else "cpu")


def others_here() -> list[str]:
    """Types of accelerators that this process sees and that `automatic` leaves alone."""
    return [name for name in ("mps", "xpu") if device_count(name)]


def device_name(device: torch.device) -> str:
    """What the maker calls an accelerator."""
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if name is not None else device.type.upper()


def accelerator_in_use() -> torch.device | None:
    """The accelerator that this process has begun to use; None without one."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return None
    module = torch.get_device_module(device)
    # MPS begins with torch. CUDA isn't asked whether it is available: processes that are forked later couldn't use it.
    begun = getattr(module, "is_initialized", module.is_available)
    return device if begun() else None


def empty_cache() -> None:
    """Give back the memory that an accelerator's allocator holds and does not use."""
    device = accelerator_in_use()
    if device is not None:
        torch.get_device_module(device).empty_cache()


def holds_cases(device: torch.device) -> bool:
    """Whether batches can be made where the cases lie: in memory that is not the host's, with the draws' float64."""
    return kind_of(device).memory_stats and kind_of(device).float64


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; of one that shares the host's, at most what is free there."""
    module: Any = torch.get_device_module(device)
    if kind_of(device).memory_stats:
        try:
            return int(module.mem_get_info(device)[0])
        except RuntimeError:
            if device.type == "cuda":
                raise
            # Some of Intel's drivers don't know.
            return total_bytes(device) - int(module.memory_reserved(device))
    if hasattr(module, "recommended_max_memory"):
        return min(module.recommended_max_memory() - module.driver_allocated_memory(), available_memory())
    return available_memory()


def total_bytes(device: torch.device) -> int:
    """All memory of a device; of one that shares the host's, the host's with its swap space."""
    if kind_of(device).memory_stats:
        return int(torch.get_device_module(device).get_device_properties(device).total_memory)
    return psutil.virtual_memory().total + psutil.swap_memory().total


def multiplies_bf16(device: torch.device) -> bool:
    """Whether an accelerator multiplies bf16 itself, rather than emulating it."""
    if "bf16" not in kind_of(device).precisions:
        return False
    return bool(torch.get_device_module(device).is_bf16_supported(including_emulation=False))


def uuids(device: torch.device) -> list[str]:
    """The card as NVML names it, which may number cards otherwise than CUDA does; empty for other makers'."""
    return [f"GPU-{torch.cuda.get_device_properties(device).uuid}"] if kind_of(device).nvidia else []
