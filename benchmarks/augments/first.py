"""Seconds to the first batch of nnU-Net's augmentation in a fresh process: `... first CACHE`, prints JSON.

The clock starts once the data are in memory and stops at the first batch: making the program, compiling it or opening
what was compiled, and one batch. Importing torch and Hasten is told apart.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(cache: Path) -> None:
    begin = time.perf_counter()
    import torch

    from benchmarks.augments import own_arm
    from benchmarks.augments.patches import Nnunet, volumes

    imported = time.perf_counter() - begin
    work = Nnunet()
    cases = volumes(2, (work.source,) * 3)
    begin = time.perf_counter()
    program = own_arm.nnunet(cases, work, compile=True, cache=cache)
    batch = program(0)
    seconds = time.perf_counter() - begin
    assert torch.isfinite(batch["image"]).all()
    row = {"seconds": seconds, "import_seconds": imported, "compiled": program.compiled, "why": program.why}
    print(json.dumps(row))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
