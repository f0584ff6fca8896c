"""Hasten's preparation as a transform, for the cached data sets and for any `Compose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from hasten.cases.types import Case
from hasten.config.schema import PrepareConfig
from hasten.prepare.case import load_prepared


@dataclass(frozen=True)
class Prepare:
    """Read and prepare the files that an item names.

    config: with spacing, intensity and crop_foreground set. labels: label value to class name, 0 the background.
    ignore: label value of voxels that are not annotated, which become 255.
    An item {"image": path or list of paths, one a channel, "label": path} becomes {"image": (C, D, H, W) tensor of
    config.dtype, "label": (1, D, H, W) uint8 class index, "geometry": what leads back to the file's voxels}; its other
    keys stay. Without a label key the item has no label. Raises ValueError naming the file and the remedy.
    """

    config: PrepareConfig
    labels: Mapping[int, str]
    image_key: str = "image"
    label_key: str = "label"
    ignore: int | None = None
    deterministic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        missing = [name for name in ("spacing", "intensity", "crop_foreground") if getattr(self.config, name) is None]
        if missing:
            raise ValueError(f"prepare.{missing[0]}: is not set; a transform decides nothing from data, so give it")

    def __call__(self, item: Mapping[str, Any]) -> dict[str, Any]:
        files = item[self.image_key]
        images = files if isinstance(files, Sequence) and not isinstance(files, str) else [files]
        label = item.get(self.label_key)
        name = str(item.get("id") or Path(images[0]).name)
        case = Case(id=name, image=tuple(map(Path, images)), label=Path(label) if label is not None else None)
        prepared = load_prepared(case, dict(self.labels), self.config, ignore=self.ignore)
        result = {**item, self.image_key: torch.from_numpy(np.require(prepared.image, requirements="W"))}
        if prepared.label is not None:
            result[self.label_key] = torch.from_numpy(np.require(prepared.label, requirements="W"))[None]
        return {**result, "geometry": asdict(prepared.geometry)}
