"""Write anew the loss curves that tests compare with, where they changed on purpose: python -m tools.golden_losses."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from tests.recipes import test_golden_losses as recipes
from tests.training import test_golden_losses as engine


def main() -> None:
    torch.set_num_threads(1)
    for module, names in ((engine, tuple(engine.RUNS)), (recipes, recipes.NAMES)):
        curves = {}
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                curves[name] = module.losses(name, Path(folder))
        module.FILE.write_text(json.dumps(curves, indent=1) + "\n")
        print(f"written: {module.FILE}")


if __name__ == "__main__":
    main()
