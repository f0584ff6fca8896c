"""Watches one script under several releases of Python and torch, in environments of their own that have torch alone.

    python -m tools.doctor_environments                 all of them, in .venv-doctor (4 to 6 GB each: CUDA builds)
    python -m tools.doctor_environments 3.9/2.1.2       one of them

Hasten runs in this interpreter, as after `pipx install`. Exits with 1 if a release is watched with other findings
than the script has, or an experiment fails; a release whose Python is not on the PATH (or among pyenv's) is left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hasten.doctor.script.doctor import judge
from hasten.doctor.script.launch import run_script

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = {
    "3.9": ("2.1.2", "numpy<2"),
    "3.10": ("2.4.1", "numpy<2.3"),
    "3.12": ("2.8.0", "numpy"),
    "3.13": ("", "numpy"),
}
"""Python: torch (the newest that pip finds if empty), and the NumPy that goes with it."""
SCRIPT = ROOT / "tests" / "doctor" / "scripts" / "environments.py"
SURE = {"no-persistent-workers", "host-read", "conv-bias-before-norm"}
"""What the script does, on any machine: the other findings depend on its speed."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="PYTHON/TORCH", help="instead of all")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-doctor", help="where the environments are kept")
    arguments = parser.parse_args()
    pairs = [tuple(each.partition("/")[::2]) for each in arguments.only]
    pairs = pairs or [(python, torch) for python, (torch, _) in ENVIRONMENTS.items()]
    failed = False
    for python, torch in pairs:
        interpreter = found(python)
        problem = "not tried: there is no such Python here"
        if interpreter is not None:
            problem = watched(environment(interpreter, torch, arguments.folder / f"{python}-{torch or 'newest'}"))
            failed |= bool(problem)
        print(
            f"Python {python}, torch {torch or 'newest'}: {problem or 'watched, with the findings that it should have'}"
        )
    return int(failed)


def found(version: str) -> str | None:
    """An interpreter of this version, of pyenv or on the PATH."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = [*(str(path) for path in root.glob(f"versions/{version}.*/bin/python")), f"python{version}"]
    return next(filter(shutil.which, candidates), None)


def environment(interpreter: str, torch: str, folder: Path) -> Path:
    """The interpreter of an environment with torch and NumPy; made if it is not there."""
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        numpy = dict(ENVIRONMENTS.values()).get(torch, "numpy")
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
        release = f"torch=={torch}" if torch else "torch"
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", release, numpy], check=True)
        (folder / ".ready").touch()
    return python


def watched(python: Path) -> str:
    """What is wrong with the watching of the script by this interpreter; empty if nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), str(SCRIPT), folder]
        run = run_script(command, steps=24, seconds=30, quiet=True)
    names = {finding.name for finding in judge(run).findings}
    if run.ended != "bounded" or not names >= SURE:
        return f"{run.ended} with {sorted(names)}, and {sorted(SURE)} were expected:\n{run.output}"
    tried = {name: each for name, each in run.records[0].experiments.items() if isinstance(each, dict)}
    failed = {name: each["error"] for name, each in tried.items() if "error" in each}
    return f"experiments failed: {failed}" if failed else ""


if __name__ == "__main__":
    sys.exit(main())
