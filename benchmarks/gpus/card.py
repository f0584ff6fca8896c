"""The machine: versions, the card and its state, the ceilings of copies and products, and 3-D convolutions.

Copies of the device count bytes read and written; those between host and device the bytes that travel. Products are of
random matrices of 8192 rows, since zeros and ones run faster than any data will. The convolutions' probe compares
every precision and memory format with float64; `conv3d` rates are forward and backward of one layer of the MLPerf-like
network's width and size at each of its resolutions, 2 patches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpus.sheet import Sheet
from benchmarks.gpus.timing import milliseconds, turns
from benchmarks.harness import Claim, interleave
from hasten.doctor.environment.conv import check_conv3d, probe_conv3d
from hasten.observe.monitor.probes import GpuProbe
from hasten.runtime.precision import DTYPES, autocast, autotuned, memory_format, tensor_cores

LEVELS = ((32, 128), (64, 64), (128, 32), (256, 16), (320, 8))
"""Channels and side of the maps."""


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    sheet.tell("torch", torch_facts(sheet.device))
    sheet.tell("card", card_facts())
    sheet.tell("card, idle", card_state())
    sheet.attempt("copies", 3, lambda: sheet.keep(copies(sheet)))
    sheet.attempt("products", 5, lambda: sheet.keep(products(sheet)))
    sheet.tell("card, after products", card_state())
    sheet.attempt("conv3d probe", 10, lambda: probe(sheet))
    for channels, side in LEVELS[-2:] if sheet.quick else LEVELS:
        what = f"conv3d of {channels} channels at {side}^3"
        sheet.attempt(what, 3, partial(convolutions, sheet, channels, side))


def precisions(device: torch.device) -> tuple[str, ...]:
    return ("fp32", "tf32", "bf16", "fp16") if device.type == "cuda" else ("fp32", "bf16")


def torch_facts(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "git": torch.version.git_version}
    if device.type == "cuda":
        result = torch.cuda.get_device_properties(device)
        facts |= {
            "cudnn": torch.backends.cudnn.version(), "capability": f"{result.major}.{result.minor}",
            "multiprocessors": result.multi_processor_count, "memory_gib": result.total_memory / 2**30,
            "l2_mib": getattr(result, "L2_cache_size", 0) / 2**20, "compiled for": torch.cuda.get_arch_list(),
        }  # fmt: skip
    with contextlib.suppress(ImportError):
        import triton

        facts["triton"] = triton.__version__
    return facts


def card_facts() -> dict[str, Any]:
    """What the management library says that does not change; what it declines is left out."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except Exception as error:  # no package, no driver, no card
        return {"none": str(error) or type(error).__name__}
    asked: dict[str, Callable[[], Any]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "driver": nvml.nvmlSystemGetDriverVersion,
        "cuda of the driver": nvml.nvmlSystemGetCudaDriverVersion_v2,
        "memory_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**20,
        "power limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "largest sm clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "largest memory clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "pcie generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "ecc": lambda: nvml.nvmlDeviceGetEccMode(handle)[0],
        "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
    }
    results = {}
    for name, ask in asked.items():
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            value = ask()
            results[name] = value.decode() if isinstance(value, bytes) else value
    nvml.nvmlShutdown()
    return results


def card_state() -> list[dict[str, Any]]:
    """Clocks, power, temperature and use at this moment, of every GPU that is visible."""
    probe = GpuProbe()
    try:
        return [asdict(gpu) for gpu in probe.read()]
    finally:
        probe.close()


def copies(sheet: Sheet) -> dict[str, list[float]]:
    """GB/s."""
    size = (16 if sheet.quick else 1024) * 2**20
    device, rounds = sheet.device, 3 if sheet.quick else 9
    one, other = (_bytes(size, device) for _ in range(2))
    arms: dict[str, Callable[[], object]] = {"device": lambda: other.copy_(one)}
    if sheet.cuda:
        pageable = _bytes(size, torch.device("cpu"))
        pinned = pageable.pin_memory()
        arms |= {
            "host to device, pinned": lambda: one.copy_(pinned, non_blocking=True),
            "host to device, pageable": lambda: one.copy_(pageable),
            "device to host, pinned": lambda: pinned.copy_(one, non_blocking=True),
            "device to host, pageable": lambda: pageable.copy_(one),
        }
    moved = {"device": 2 * size}
    times = turns(arms, device, rounds=rounds, warmup=2)
    return {
        f"copy/{name}_GB/s": [moved.get(name, size) / value / 1e6 for value in values] for name, values in times.items()
    }


def _bytes(size: int, device: torch.device) -> Tensor:
    """So many bytes that are not all the same; drawing random ones takes seconds on a host."""
    return torch.arange(size // 8, device=device).view(torch.uint8)


def products(sheet: Sheet) -> dict[str, list[float]]:
    """TFLOP/s by precision: the ceilings that a step is compared with."""
    side = 256 if sheet.quick else 8192
    arms = {name: _product(sheet.device, name, side) for name in precisions(sheet.device)}
    times = turns(arms, sheet.device, rounds=3 if sheet.quick else 7, repeats=2 if sheet.quick else 5, warmup=2)
    return {f"product/{name}_TFLOP/s": [2 * side**3 / value / 1e9 for value in row] for name, row in times.items()}


def _product(device: torch.device, precision: str, side: int) -> Callable[[], Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    dtype = DTYPES.get(precision, torch.float32)
    left, right = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def once() -> Tensor:
        with tensor_cores(device, precision):
            return torch.matmul(left, right, out=out)

    return once


def probe(sheet: Sheet) -> None:
    cells = probe_conv3d(sheet.device)
    sheet.tell("conv3d probe", [asdict(cell) | {"sound": cell.sound} for cell in cells])
    sheet.tell("conv3d probe, in words", [asdict(check) for check in check_conv3d(cells)])
    unsound = sum(not cell.sound for cell in cells)
    sheet.claim(Claim.at_most("conv3d: cells that are off float64 by more than their precision", unsound, 0))


def convolutions(sheet: Sheet, channels: int, side: int) -> None:
    """TFLOP/s of a 3x3x3 convolution, forward and both gradients, by precision and memory format."""
    batch, device = 2, sheet.device
    arms = {}
    # Timing cuDNN's algorithms takes seconds for each: the precisions that a run takes.
    for precision in ("tf32", "bf16") if sheet.cuda else precisions(device):
        for last in (False, True):
            name = f"{precision} {'channels-last' if last else 'contiguous'}"
            arms[name] = milliseconds(_convolution(device, precision, last, batch, channels, side), device)
    times = interleave(arms, rounds=2 if sheet.quick else 5, warmup=1 if sheet.quick else 3)
    work = 3 * 2 * batch * side**3 * channels**2 * 27
    sheet.keep({f"conv3d/{channels}@{side}/{name}_TFLOP/s": [work / value / 1e9 for value in row]
                for name, row in times.items()})  # fmt: skip


def _convolution(
    device: torch.device, precision: str, last: bool, batch: int, channels: int, side: int
) -> Callable[[], None]:
    torch.manual_seed(0)
    layout = memory_format(3, last)
    conv = nn.Conv3d(channels, channels, 3, padding=1, bias=False, device=device)
    conv.weight.data = conv.weight.data.contiguous(memory_format=layout)
    shape = (batch, channels, side, side, side)
    image = torch.randn(shape, device=device).contiguous(memory_format=layout)
    # In the type that the layer before it would give, so that no cast is timed.
    image = image.to(DTYPES.get(precision, torch.float32)).requires_grad_()
    back = torch.randn_like(image)

    def once() -> None:
        with tensor_cores(device, precision), autotuned(device):
            with autocast(device, precision):
                output = conv(image)
            output.backward(back)
        conv.weight.grad = image.grad = None

    return once
