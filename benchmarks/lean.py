"""A virtual environment with what Hasten needs and nothing else, of the packages that are installed.

`import monai` imports every optional package that it finds, so that peers start slower in an environment with many.
Comparisons of whole runs are fair in one like this. Packages are linked, not copied:
`python -m benchmarks.lean --to DIR`, then `DIR/bin/python -m benchmarks.ladder ...` in the checkout.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
import venv
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.harness import ROOT


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="folder of the environment; new or empty")
    given = parser.parse_args(argv)
    if given.to.exists() and any(given.to.iterdir()):
        parser.error(f"--to {given.to}: is not empty; name a new folder")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    packages = closure(needed)
    venv.create(given.to, symlinks=True)
    site = given.to.resolve() / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for package in packages.values():
        link(package, site)
    (site / "checkout.pth").write_text(f"{ROOT / 'src'}\n")
    print(f"{len(packages)} packages in {given.to}: {' '.join(sorted(packages))}")


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The installed packages of these requirements and of theirs, by name; optional ones that are not there are left.

    Raises ValueError for one that is needed and not installed.
    """
    result: dict[str, Distribution] = {}
    left = [Requirement(text) for text in requirements]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in result:
            continue
        try:
            result[name] = distribution(name)
        except PackageNotFoundError:
            raise ValueError(f"{name}: is not installed; pip install it") from None
        needs = map(Requirement, result[name].requires or [])
        left += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return result


def link(package: Distribution, site: Path) -> None:
    """Link each file or folder that the package has beside others; a folder that packages share comes as a whole."""
    for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:  # "..": commands
        if not (site / name).exists():
            (site / name).symlink_to(Path(str(package.locate_file(name))))


if __name__ == "__main__":
    main()
