"""Takes the Dockerfile's steps without a daemon, in a Debian root by mmdebstrap, and runs the README's commands in it.

As root, on a Debian with mmdebstrap. The commands run as the image's user and as one that it doesn't know, with a
read-only root, 64 MiB of /dev/shm, HASTEN_CACHE on a folder of its own, and without a network. Exits with 1 if a step
or a command fails, or a run compiled what the image holds. Variables PIP_* hold for the steps.

    python tools/image_root.py FOLDER DATASET [--budget 1min] [--bind PATH ...] [--build-arg NAME=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
MIRROR = "http://deb.debian.org/debian"
DATASET = "/data"
OTHER_USER = 4321
IMAGES = 2
"""Images that are predicted."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile says, as far as ours goes."""

    base: str
    arguments: Mapping[str, str]
    steps: tuple[tuple[str, str], ...]
    """COPY, RUN and ENV with the rest of their line, in their order."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """USER, WORKDIR, VOLUME, ENTRYPOINT, CMD."""


def parsed(text: str) -> Image:
    """The image of a Dockerfile's text. Raises ValueError for an instruction that is none of these."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    words = [row.split(None, 1) for row in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines() if row.strip()]
    base, arguments, steps, settings = "", {}, [], {}
    for instruction, rest in words:
        match instruction:
            case "FROM":
                base = rest
            case "ARG":
                name, _, value = rest.partition("=")
                arguments[name] = value.strip('"')
            case "COPY" | "RUN" | "ENV":
                steps.append((instruction, rest))
            case "USER" | "WORKDIR" | "VOLUME" | "ENTRYPOINT" | "CMD":
                settings[instruction] = rest
            case _:
                raise ValueError(f"Dockerfile: {instruction} is not among the instructions that image_root.py knows")
    return Image(base, arguments, tuple(steps), settings)


def assignments(text: str) -> dict[str, str]:
    """The variables of an ENV line."""
    return {name: value for name, _, value in (pair.partition("=") for pair in shlex.split(text))}


def environment_of(image: Image) -> dict[str, str]:
    """The variables of all its ENV lines."""
    return {name: value for kind, rest in image.steps if kind == "ENV" for name, value in assignments(rest).items()}


def readme_commands(text: str) -> list[str]:
    """The lines of the README's quick start."""
    block = re.search(r"^## Two commands\n+```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


class Root:
    """A root folder, in a mount namespace that ends with this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tmpfs(self, at: str, options: str) -> None:
        place = self.folder / at.lstrip("/")
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)

    def bind(self, source: Path, at: str, *, read_only: bool) -> None:
        place = self.folder / at.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            place.touch()
        else:
            place.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(source), str(place)], check=True)
        if read_only:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        user: int = 0,
        at: str = "/",
        network: bool = True,
    ) -> None:
        """Run a command with nothing but these variables. Raises CalledProcessError, after showing what it printed."""
        isolated = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={self.folder / 'proc'}"]
        identity = ["--reuid", str(user), "--regid", str(user)] if user else []
        inside = ["chroot", str(self.folder), "setpriv", *identity, "--clear-groups", "env", "--chdir", at, *command]
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}
        done = subprocess.run(
            [*isolated, *([] if network else ["--net"]), *inside],
            env=variables, text=True, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode or not network:
            print(done.stdout[-6000:], flush=True)
        done.check_returncode()


def build(image: Image, folder: Path, given: Mapping[str, str], binds: Sequence[Path]) -> None:
    """Make the root and take the image's steps in it. Raises CalledProcessError for one that fails."""
    distribution, _, suite = image.base.partition(":")
    assert distribution == "debian", image.base
    with timed("mmdebstrap"):
        command = ["mmdebstrap", "--quiet", "--variant=minbase", suite.removesuffix("-slim"), str(folder), MIRROR]
        subprocess.run(command, check=True)
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    variables = {"DEBIAN_FRONTEND": "noninteractive", "HOME": "/root", **pip, **image.arguments, **given}
    root = Root(folder)
    root.tmpfs("/tmp", "mode=1777")
    for source in (Path("/etc/resolv.conf"), *binds):
        root.bind(source, str(source), read_only=True)
    for kind, rest in image.steps:
        match kind:
            case "ENV":
                variables |= assignments(rest)
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    copy_into(REPOSITORY / source, folder / target.lstrip("/"), inside=target.endswith("/"))
            case _:
                with timed(rest):
                    root.run(["/bin/sh", "-c", rest], variables)


def copy_into(source: Path, target: Path, *, inside: bool) -> None:
    """COPY of one file or folder; inside: `target` is the folder that it goes into."""
    target = target / source.name if inside else target
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def use(image: Image, folder: Path, user: int, dataset: Path, budget: str) -> None:
    """The README's commands as a user of the image. Raises CalledProcessError, and ValueError for what is missing."""
    state = Path(tempfile.mkdtemp(prefix="image-", dir=folder.parent))
    state.chmod(0o755)
    root = Root(folder)
    (folder / DATASET.lstrip("/")).mkdir(exist_ok=True)
    root.bind(folder, "/", read_only=True)
    root.tmpfs("/tmp", "mode=1777")
    root.tmpfs("/dev/shm", "mode=1777,size=64m")
    for name in ("cache", "work"):
        (state / name).mkdir()
        (state / name).chmod(0o1777)
    root.bind(state / "cache", image.settings["VOLUME"], read_only=False)
    root.bind(state / "work", image.settings["WORKDIR"], read_only=False)
    root.bind(dataset, DATASET, read_only=True)
    images = sorted(each.name for each in (dataset / "imagesTr").iterdir() if not each.name.startswith("."))[:IMAGES]
    variables = environment_of(image) | {"HOME": "/nonexistent"}
    for line in readme_commands((REPOSITORY / "README.md").read_text()):
        words = shlex.split(line.replace("DATASET", DATASET).replace("10min", budget))
        words = [
            part
            for word in words
            for part in ([f"{DATASET}/imagesTr/{name}" for name in images] if word == "IMAGE..." else [word])
        ]
        assert [words[0]] == json.loads(image.settings["ENTRYPOINT"]), line
        with timed(f"user {user}: {shlex.join(words)}"):
            root.run(words, variables, user=user, at=image.settings["WORKDIR"], network=False)
    out = state / "work" / "masks"
    masks = [each.name for each in out.iterdir()]
    if not set(images) <= set(masks):
        raise ValueError(f"{out}: holds {masks}, and not a label map for each of {images}")
    compiled = [str(each) for each in (state / "cache").glob("kernels/cpu-*")]
    if compiled:
        raise ValueError(f"{', '.join(compiled)}: was compiled by a run, though the image holds these functions")


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print the seconds that the block took."""
    begin = time.perf_counter()
    yield
    print(f"{time.perf_counter() - begin:7.1f} s  {name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the root and what the commands write go; new or empty")
    parser.add_argument("dataset", type=Path, help="a data set with imagesTr/, as `hasten phantom` writes one")
    parser.add_argument("--budget", default="1min", help="train.budget, in place of the README's")
    parser.add_argument(
        "--bind", type=Path, nargs="*", default=[], help="paths that the steps read, such as pip's settings"
    )
    parser.add_argument("--build-arg", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:  # what is mounted below goes with the namespace
        return subprocess.run(["unshare", "--mount", sys.executable, *sys.argv, "--inside"], check=False).returncode
    image, root = parsed((REPOSITORY / "Dockerfile").read_text()), args.folder.resolve() / "root"
    given = dict(each.split("=", 1) for each in args.build_arg)
    if not root.exists():
        partial = root.with_name("partial")
        partial.mkdir(parents=True)
        build(image, partial, given, args.bind)
        partial.rename(root)
    users = [line.split(":") for line in (root / "etc/passwd").read_text().splitlines()]
    own = next(int(fields[2]) for fields in users if fields[0] == image.settings["USER"])
    for user in (own, OTHER_USER):
        use(image, root, user, args.dataset.resolve(), args.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
