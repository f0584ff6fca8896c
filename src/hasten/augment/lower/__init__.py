"""Lowers a MONAI transform to Hasten's operations: one module per family, each with one `match` on MONAI's classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hasten.augment.chain import Fixed
from hasten.augment.lower.crops import is_random_crop, lower_crop
from hasten.augment.lower.geometry import lower_geometry
from hasten.augment.lower.intensity import lower_intensity
from hasten.augment.lower.suffix import lower_cucim, lower_suffix
from hasten.augment.lower.types import Context, Lowered, NotLowered, Undecided, keys_of, name_of, names_of

__all__ = ["Context", "Lowered", "NotLowered", "Undecided", "is_random_crop", "keys_of", "lower", "name_of", "names_of"]

_FAMILIES = (lower_crop, lower_geometry, lower_intensity, lower_suffix, lower_cucim)


def lower(transform: Any, context: Context) -> Lowered:
    """The operations. Raises NotLowered with the reason if it can't be lowered, ValueError for bad arguments."""
    _check_class(transform)
    if getattr(transform, "allow_missing_keys", False):
        raise NotLowered("leaves out the keys that a case does not have (allow_missing_keys=True)")
    if type(transform).__name__ in ("MixUpd", "CutMixd", "CutOutd"):
        raise ValueError(f"{name_of(transform)}: mixes the samples of a batch; apply it to the batches of the program")
    created = next((key for key in keys_of(transform) if key in context.created), None)
    for family in _FAMILIES:
        lowered = family(transform, context)
        if lowered is None:
            continue
        if created is not None and family is not lower_suffix:
            raise NotLowered(f'works on "{created}", which the chain makes')
        return _restricted(lowered, context)
    raise NotLowered("has no counterpart in Hasten")


def _check_class(transform: Any) -> None:
    import monai.transforms as mt

    kind = type(transform)
    if isinstance(transform, mt.Compose):
        raise NotLowered("decides by itself which of its transforms run, and in which order")
    if not kind.__module__.startswith("monai.transforms."):
        base = next((each for each in kind.__mro__ if each.__module__.startswith("monai.transforms.")), None)
        made_from = (
            f" made from MONAI's {base.__name__}" if base is not None and issubclass(base, mt.MapTransform) else ""
        )
        raise NotLowered(f"is code of your own{made_from}, which Hasten does not look into")
    if not isinstance(transform, mt.MapTransform):
        raise NotLowered(f"works on arrays; write {kind.__name__}d to say which keys of an item it changes")


def _restricted(lowered: Lowered, context: Context) -> Lowered:
    """Drop the keys that are not in the batch."""
    ops = []
    for op in lowered.ops:
        keys = getattr(op, "keys", ())
        rest = tuple(key for key in keys if key in context.keys)
        if isinstance(op, Fixed):
            # Its keys are checked against those that the chain starts with.
            ops.append(op if rest == keys else replace(op, keys=()))
            continue
        if keys and not rest:
            continue
        if rest != keys:
            modes = getattr(op, "mode", ())
            if len(modes) > 1:
                op = replace(op, mode=tuple(mode for key, mode in zip(keys, modes, strict=True) if key in rest))
            op = replace(op, keys=rest)
        ops.append(op)
    return replace(lowered, ops=tuple(ops))
