"""Wheels of what Hasten needs beside PyTorch, for a machine with a CUDA build of torch and no way to any index.

`python -m benchmarks.gpus.pack --to DIR` fetches them here, each in the version that is installed here and without its
needs, so that nothing can take the place of that machine's torch. There:
`python -m pip install --no-index --no-deps --target SITE DIR/*.whl` and `PYTHONPATH=SITE:src`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

NEEDED = (
    "monai", "nibabel", "pytorch-ignite", "isal", "pydantic", "pydantic-core",
    "annotated-types", "typing-inspection", "typing-extensions",
)  # fmt: skip
"""What an image with PyTorch and the usual packages of its field mostly lacks. numpy, psutil, PyYAML, typer, rich,
matplotlib, pillow, jinja2, tensorboard and nvidia-ml-py are taken to be there: `--also` adds any that is not."""
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)),
    "manylinux2014_x86_64", "manylinux1_x86_64",
)  # fmt: skip
LIMIT_MIB = 64.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="folder for the wheels; .whl files in it are replaced")
    parser.add_argument("--python", default="3.12", help="version of Python there; default 3.12")
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME", help="further packages that it lacks")
    given = parser.parse_args(argv)
    size = fetch(wanted([*NEEDED, *given.also]), given.to, given.python)
    print(f"{size:.1f} MiB of wheels for Python {given.python} in {given.to}")
    if size > LIMIT_MIB:
        print(f"that is more than {LIMIT_MIB:.0f} MiB, which some ways of sending it do not take", file=sys.stderr)


def wanted(names: Sequence[str]) -> list[str]:
    """`name==version` of each, as installed here. Raises ValueError for torch, and for what is not installed."""
    results = []
    for name in dict.fromkeys(canonicalize_name(name) for name in names):
        if name == "torch" or name.startswith(("nvidia-c", "triton")):
            raise ValueError(f"{name}: the machine's own build is to be used; leave it out")
        try:
            results.append(f"{name}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(
                f"{name}: is not installed here, so that its version is not known; pip install it"
            ) from None
    return results


def fetch(requirements: Sequence[str], to: Path, python: str) -> float:
    """Fetch the wheels; MiB of all in `to`. Raises ValueError where one is not to be had."""
    to.mkdir(parents=True, exist_ok=True)
    for old in to.glob("*.whl"):
        old.unlink()  # two versions of one package would stop the whole install
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--implementation", "cp", "--python-version", python]  # fmt: skip
    for platform in PLATFORMS:
        command += ["--platform", platform]
    done = subprocess.run([*command, "-d", str(to), *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"pip could not fetch the wheels: {done.stderr.strip()[-1000:]}")
    return sum(path.stat().st_size for path in to.glob("*.whl")) / 2**20


if __name__ == "__main__":
    main()
