"""What Hasten does on one CUDA GPU, in a fixed number of seconds and without a network.

Eleven parts, the most valuable first (`benchmarks/gpus`): ceilings of the card, the tests, a ladder of training steps,
the feed, kernels, a profile, the cache, sliding windows, time to a target, the left atrium, MONAI's own gate. Each is a
process of its own with a share of what is left of the budget, and its file is there from its first figure on, so that
neither a fault of one part nor the end of the machine costs what was found before. Parts that are finished in `--out`
are skipped: a second call goes on.

`--device cpu --quick` runs every part at toy sizes where there is no GPU; its files say so in their names.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from benchmarks.gpus.plan import PARTS, Part, parts_named, seconds_for
from benchmarks.gpus.sheet import FINISHED, RUNNING, sheet_of
from benchmarks.gpus.table import print_table
from benchmarks.harness import ROOT
from hasten.doctor.script.launch import end_all
from hasten.observe.rundir import write_json

CHILD = ("-m", "benchmarks.gpus.child")
STDERR = 2
SLOW = 10.0
"""A rehearsal may take so many times a part's seconds: where there is no GPU, there may be few cores as well."""
GRACE = 4.0
"""Seconds that a part which is told to end has for it."""


class Stopped(Exception):
    """This process was told to end."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv)
    signal.signal(signal.SIGTERM, _stopped)
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        measure(given, time.monotonic() + given.budget)
    except (Stopped, KeyboardInterrupt):
        print("told to end: what was found so far is kept", file=sys.stderr)
    print_table(given.out, given.device, quick=given.quick)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    names = [part.name for part in PARTS]
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file a part")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds in all; default 540")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, help="; ".join(map(_line, PARTS)))
    parser.add_argument("--again", action="store_true", help="measure finished parts once more")
    parser.add_argument("--quick", action="store_true", help="toy sizes: a rehearsal, not a measurement")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: with --quick only")
    given = parser.parse_args(argv)
    if given.device == "cpu" and not given.quick:
        parser.error("--device cpu: the sizes are a GPU's; add --quick for a rehearsal without one")
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            parser.error("no CUDA device is found; --device cpu --quick rehearses without one")
    return given


def _line(part: Part) -> str:
    return f"{part.name}: {part.title}"


def measure(given: argparse.Namespace, ends: float) -> None:
    """Run the parts one after another until none is left, or too little time."""
    wanted = parts_named(given.parts)
    if len(wanted) == 1:
        # Whoever asks for one part alone wants what its time gives.
        wanted = [replace(wanted[0], least=0.0)]
    if given.quick:
        wanted = [replace(part, most=part.most * SLOW) for part in wanted]
    for number, part in enumerate(wanted):
        if not given.again and _is_finished(part, given):
            print(f"{part.name}: finished before; --again measures it once more", file=sys.stderr)
            continue
        later = [other for other in wanted[number + 1 :] if given.again or not _is_finished(other, given)]
        seconds = seconds_for(part, later, ends - time.monotonic() - GRACE)
        if seconds is None:
            print(f"{part.name}: no time is left for it", file=sys.stderr)
            continue
        print(f"{part.name}: {part.title}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
        run_part(part, given, seconds)


def run_part(part: Part, given: argparse.Namespace, seconds: float) -> None:
    """A child process; where it overstays it is told to end, and then killed."""
    begun = time.time()
    command = [sys.executable, *CHILD, part.name, "--out", str(given.out.resolve()),
               "--seconds", f"{seconds:.1f}", "--device", given.device]  # fmt: skip
    # A session of its own: it, and all that it started, can be ended together.
    child = subprocess.Popen(
        [*command, *(["--quick"] if given.quick else [])], cwd=ROOT, stdout=STDERR, start_new_session=True
    )
    why = "killed, as its time was up"
    try:
        child.wait(seconds)
        why = f"ended with exit code {child.returncode}"
    except subprocess.TimeoutExpired:
        pass
    except BaseException:
        why = "killed, as the benchmark was told to end"
        raise
    finally:
        end_all(child, GRACE)
        _mark(part, given, begun, why)


def _mark(part: Part, given: argparse.Namespace, begun: float, why: str) -> None:
    """A part that did not live to say how it ended is told about."""
    result = sheet_of(part.name, given.out, given.device, quick=given.quick)
    if result is None or result[0].stat().st_mtime < begun:
        print(f"{part.name}: {why} before it had written anything", file=sys.stderr)
        return
    path, record = result
    if record["status"] == RUNNING:
        write_json(path, record | {"status": why})


def _is_finished(part: Part, given: argparse.Namespace) -> bool:
    result = sheet_of(part.name, given.out, given.device, quick=given.quick)
    return result is not None and result[1]["status"] == FINISHED


def _stopped(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows is the tidying up
    raise Stopped


if __name__ == "__main__":
    main()
