"""MONAI's `CuCIMd` and `RandCuCIMd`, which run cuCIM's own transforms on a GPU, sample by sample."""

from __future__ import annotations

from typing import Any

from hasten.augment.chain import PerSample
from hasten.augment.cucim import PARAMETERS, OnGpu, arguments
from hasten.augment.lower.types import Context, Lowered, keys_of, name_of


def is_cucim(transform: Any) -> bool:
    import monai.transforms as mt

    return isinstance(transform, mt.CuCIMd | mt.RandCuCIMd)


def lower_cucim(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises ValueError where cuCIM can't run, or has no such transform."""
    if not is_cucim(transform):
        return None
    name = transform.name
    if name not in PARAMETERS:
        raise ValueError(f'{name_of(transform)}: cuCIM has no transform "{name}"; it has {", ".join(PARAMETERS)}')
    kwargs = arguments(name, transform.trans.args, transform.trans.kwargs)
    if not context.cucim:
        raise ValueError(
            f"{name_of(transform)}: {name} needs a CUDA device, cupy and cucim (and strict=False); write MONAI's own "
            "transform for it"
        )
    op = PerSample(transforms=(OnGpu(keys_of(transform), name, kwargs),))
    return Lowered(ops=(op,), note="cuCIM on the GPU, sample by sample")
