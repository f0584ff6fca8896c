"""What looks like nnU-Net's data set of preprocessed cases."""

from __future__ import annotations

from typing import Any

import numpy as np


class DataSet:
    """`load_case` gives data (C, D, H, W), seg (1, D, H, W) with -1 outside, and voxels of classes."""

    identifiers: tuple[str, ...] = ("a", "b", "c")

    def load_case(self, name: str) -> tuple[np.ndarray, np.ndarray, None, dict[str, Any]]:
        number = self.identifiers.index(name)
        shape = (12 + number, 14, 16)
        rng = np.random.default_rng(number)
        seg = np.zeros((1, *shape), np.int16)
        seg[:, 2:5, 3:6, 4:7] = 1
        seg[:, 7:9, 8:10, 9:11] = 2
        data = np.stack([seg[0] + 10 * number, rng.random(shape)]).astype(np.float32)
        seg[:, 0] = -1
        locations = {value: np.argwhere(seg == value) for value in (1, 2)}
        return data, seg, None, {"class_locations": locations}
