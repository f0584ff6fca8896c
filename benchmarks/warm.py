"""How long the first run on a machine takes, with kernels that `hasten warm` compiled and without.

Every run is a process of its own that trains two steps on phantoms, with an empty cache folder: its cases are prepared
anew. "warmed" reads its kernels from a folder that was filled before. "default" is a run as it is planned; in
"compiled" the batch program is compiled too (`sample.compile=true`). The arms take turns.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.data import phantoms
from benchmarks.harness import arguments, busy_machine, child_environment, finish, interleave

SETTINGS = {"default": (), "compiled": ("sample.compile=true",)}


def main(argv: Sequence[str] | None = None) -> None:
    rounds = {"type": int, "help": "default 5, quick 1"}
    given = arguments(str(__doc__).splitlines()[0], argv, rounds=rounds)
    others = busy_machine()
    with tempfile.TemporaryDirectory() as scratch:
        data = phantoms(Path(scratch) / "set", 8, {"shape": (40, 56, 40)})
        arms = {}
        for name, settings in SETTINGS.items():
            kernels = Path(scratch, name)
            hasten("warm", str(data), *settings, cache=kernels)
            for state, folder in (("cold", None), ("warmed", kernels / "kernels")):
                arms[f"{name}/{state}_s"] = partial(first_run, data, settings, folder)
        results = interleave(arms, given.rounds or (1 if given.quick else 5))
    finish("warm", [], results, given.out, given.quick, settings={"about": __doc__}, others_before=others)


def first_run(data: Path, settings: Sequence[str], kernels: Path | None) -> None:
    """Train two steps with an empty cache folder. kernels: compiled beforehand."""
    with tempfile.TemporaryDirectory() as folder:
        run = ["train", str(data), "--out", f"{folder}/run", "--quiet", "train.steps=2", *settings]
        hasten(*run, cache=Path(folder, "cache"), kernels=kernels)


def hasten(*words: str, cache: Path, kernels: Path | None = None) -> None:
    """Run a command of Hasten's on a CPU. Raises CalledProcessError."""
    places = {"HASTEN_CACHE": str(cache), "HASTEN_KERNELS": str(kernels or ""), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "hasten", *words]
    subprocess.run(command, env=child_environment() | places, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
