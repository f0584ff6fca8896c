"""How long the first run on a machine takes, with kernels that `hasten warm` compiled and without.

Every run is a process of its own that trains two steps on phantoms, with an empty cache folder: its cases are prepared
anew. "warmed" reads its kernels from folders that were filled before. "default" is a run as it is planned; in
"compiled" torch compiles the network (`train.compile=true`). The arms take turns. On two cores a cold run of
"compiled" takes two to three minutes, so its five rounds take about 20, with nothing to see meanwhile.
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

PARTS = {"default": (), "compiled": ("train.compile=true",)}


def main(argv: Sequence[str] | None = None) -> None:
    parts = {"nargs": "+", "choices": tuple(PARTS), "default": list(PARTS)}
    given = arguments(
        str(__doc__).splitlines()[0], argv, rounds={"type": int, "help": "default 5, quick 1"}, parts=parts
    )
    others = busy_machine()
    with tempfile.TemporaryDirectory() as scratch:
        data = phantoms(Path(scratch) / "set", 8, {"shape": (40, 56, 40)})
        arms = {}
        for name in given.parts:
            warmed = Path(scratch, name)
            hasten("warm", str(data), *PARTS[name], cache=warmed, compiled=warmed)
            arms[f"{name}/cold_s"] = partial(first_run, data, PARTS[name], None)
            arms[f"{name}/warmed_s"] = partial(first_run, data, PARTS[name], warmed)
        results = interleave(arms, given.rounds or (1 if given.quick else 5))
    label = "_".join(["warm", *given.parts]) if given.parts != list(PARTS) else "warm"
    finish(label, [], results, given.out, given.quick, settings={"about": __doc__}, others_before=others)


def first_run(data: Path, settings: Sequence[str], warmed: Path | None) -> None:
    """Train two steps with an empty cache folder. warmed: a folder with what was compiled beforehand."""
    with tempfile.TemporaryDirectory() as folder:
        run = ["train", str(data), "--out", f"{folder}/run", "--quiet", "train.steps=2", *settings]
        hasten(*run, cache=Path(folder, "cache"), compiled=warmed or Path(folder))


def hasten(*words: str, cache: Path, compiled: Path) -> None:
    """Run a command of Hasten's on a CPU. compiled: where kernels are looked for. Raises CalledProcessError."""
    places = {
        "HASTEN_CACHE": str(cache),
        "HASTEN_KERNELS": str(compiled / "kernels"),
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "hasten", *words]
    subprocess.run(command, env=child_environment() | places, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
