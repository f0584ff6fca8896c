"""Precision of a workflow, from `amp`, `amp_kwargs` and `precision` on a device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hasten.engine.precision import DTYPES, scaler_for, tensor_cores

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Arithmetic:
    """`with arithmetic.forward():` around a forward pass."""

    device: torch.device
    precision: str | None
    """A name of `PRECISIONS`; None keeps torch's setting."""
    autocasts: dict[str, Any]
    """Arguments of `torch.autocast` for a 16-bit precision, `device_type` included."""

    @classmethod
    def of(
        cls, device: torch.device | None, *, amp: bool, amp_kwargs: dict[str, Any], precision: str | None
    ) -> Arithmetic:
        """amp alone takes bf16 on a CPU and on a GPU that has it, fp16 elsewhere, or the dtype of `amp_kwargs`."""
        where = device or torch.device("cpu")
        if precision is not None and precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r}: one of {', '.join(PRECISIONS)}")
        if amp and precision in ("fp32", "tf32"):
            raise ValueError(
                f"amp=True is 16-bit arithmetic, and precision={precision!r} is not: leave one of them out"
            )
        if precision is None and amp:
            precision = _sixteen_bits(where, amp_kwargs.get("dtype"))
        dtype = DTYPES.get(precision or "")
        autocasts = {"device_type": where.type, "dtype": dtype, **amp_kwargs} if dtype is not None else {}
        return cls(device=where, precision=precision, autocasts=autocasts)

    def forward(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return torch.autocast(**self.autocasts) if self.autocasts else nullcontext()

    def step(self) -> AbstractContextManager[Any]:
        """The context of a whole step, which sets TF32 multiplications on a GPU if `precision` was given."""
        if self.precision is None or self.device.type != "cuda":
            return nullcontext()
        return tensor_cores(self.device, self.precision)

    def scaler(self) -> torch.amp.GradScaler | None:
        """None unless autocast is on; it scales for fp16 only."""
        return scaler_for(self.device, self.precision or "fp32") if self.autocasts else None


def _sixteen_bits(device: torch.device, dtype: torch.dtype | None) -> str:
    if dtype is not None:
        return "fp16" if dtype == torch.float16 else "bf16"
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "fp16"
    return "bf16"
