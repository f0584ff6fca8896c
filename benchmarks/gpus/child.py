"""One part of `benchmarks.gpu` in a process of its own, so that whatever ends it ends nothing else."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.gpus.plan import PARTS
from benchmarks.gpus.sheet import FINISHED, new_sheet
from hasten.observe.clock import process_start_seconds


class CutOff(BaseException):
    """SIGTERM. No part catches it by accident."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("part", choices=[part.name for part in PARTS])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="what goes on longer is left out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _cut_off)
    sys.exit(run(given))


def run(given: argparse.Namespace) -> int:
    """Measure the part and write its file; 0 when it came to its end."""
    import torch

    device = torch.device(given.device)
    seconds = given.seconds - process_start_seconds()
    sheet = new_sheet(given.part, given.out, device, quick=given.quick, seconds=seconds)
    try:
        importlib.import_module(f"benchmarks.gpus.{given.part}").measure(sheet)
    except CutOff:
        sheet.status = "cut off"
    except Exception as error:
        traceback.print_exc()
        sheet.status = f"failed: {type(error).__name__}: {str(error).strip()[:500]}"
    else:
        sheet.status = FINISHED
    sheet.write()
    return 0 if sheet.status == FINISHED else 1


def _cut_off(number: int, frame: FrameType | None) -> None:
    raise CutOff


if __name__ == "__main__":
    main()
