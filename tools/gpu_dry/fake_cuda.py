"""CUDA paths on a machine without a GPU, on tensors without values: `python -m tools.gpu_dry.fake_cuda`.

Fails on a read of a value, on a size that depends on values, on a mix of devices, on a copy between host and device,
and where a dtype or a memory format is not the expected one.
"""

from __future__ import annotations

import sys
from itertools import chain

from tools.gpu_dry.augmentation import augmentation_checks
from tools.gpu_dry.evaluation import evaluation_checks
from tools.gpu_dry.own import own_checks
from tools.gpu_dry.table import run_checks
from tools.gpu_dry.training import training_checks

PARTS = {
    "own": own_checks, "augmentation": augmentation_checks, "training": training_checks,
    "evaluation": evaluation_checks,
}  # fmt: skip


def main() -> int:
    chosen = sys.argv[1:] or list(PARTS)
    checks = chain.from_iterable(PARTS[name]() for name in chosen)
    return run_checks("fake CUDA tensors", checks)


if __name__ == "__main__":
    sys.exit(main())
