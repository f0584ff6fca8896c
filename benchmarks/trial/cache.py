"""A cache whose files are damaged, missing or no files, and a cache folder that can't be written to or is full."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.trial.base import copied, steps_of, train_args
from benchmarks.trial.images import SPOILT, Spoil
from benchmarks.trial.judge import Ended, Expect, Verdict
from benchmarks.trial.run import Box, Command, Trial

FILES = ("arena/*/image.bin", "arena/*/label.bin", "arena/*/points.bin", "arena/*/arena.json", "fingerprint/*.json")
_SPOILS = ("empty", "cut-at-half", "cut-before-end", "random-bytes", "zeros", "flips-0", "surplus", "folder",
           "dangling-link", "link-loop")  # fmt: skip
VERBS = ("train", "verify", "ls", "prune", "du")


def _one(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[0]


def same_training(box: Box, ended: Ended) -> str:
    """Damage, if a training that ended well is not the one of the base, which had the same settings."""
    if ended.code or steps_of(box.folder / "out") == steps_of(box.base / "run"):
        return ""
    return "the training took other data than the files hold"


def _spoilt(pattern: str, spoil: Spoil, verb: str, expect: Expect, box: Box) -> Command:
    spoil(_one(copied(box, "cache"), pattern))
    return _with_cache(box, verb, expect, ["arena", "fingerprint", "cache"])


def _with_cache(box: Box, verb: str, expect: Expect, names: list[str]) -> Command:
    if verb == "train":
        args = train_args(box.base / "volumes")
        return Command(args=args, names=names, expect=expect, check=partial(same_training, box))
    args = ["cache", verb, *(["--damaged"] if verb == "prune" else [])]
    return Command(args=args, names=names, expect=expect)


def _absent(pattern: str, verb: str, box: Box) -> Command:
    _one(copied(box, "cache"), pattern).unlink()
    return _with_cache(box, verb, "either", ["arena", "cache"])


def _alone(part: str) -> bool:
    """In a name space of mounts of this process, so that what it mounts goes with it. Whether that is allowed."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:
        return False
    if subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode:
        return False
    return subprocess.run(["mount", *part.split()], capture_output=True).returncode == 0


_CANT_MOUNT = Verdict(verdict="skipped", why="mounting is not allowed here")


def _small(name: str, size: str, box: Box) -> Command | Verdict:
    """The folder `name` is on a disk with room for next to nothing."""
    (box.folder / name).mkdir()
    if not _alone(f"-t tmpfs -o size={size} tmpfs {box.folder / name}"):
        return _CANT_MOUNT
    return Command(args=train_args(box.base / "volumes"), names=[name, "disk", "space"], expect="refused")


def _read_only(name: str, box: Box) -> Command | Verdict:
    (box.folder / name).mkdir()
    if not _alone(f"-t tmpfs -o ro,size=1m tmpfs {box.folder / name}"):
        return _CANT_MOUNT
    return Command(args=train_args(box.base / "volumes"), names=[name], expect="refused")


def _read_only_but_whole(box: Box) -> Command | Verdict:
    """A cache that others have built, on a file system that this process can't write to."""
    cache = copied(box, "cache")
    if not _alone(f"--bind {cache} {cache}"):
        return _CANT_MOUNT
    if subprocess.run(["mount", "-o", "remount,ro,bind", str(cache)], capture_output=True).returncode:
        return _CANT_MOUNT
    args = train_args(box.base / "volumes")
    return Command(args=args, names=["cache"], expect="either", check=partial(same_training, box))


PLACES: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("x"),
    "dangling-link": lambda path: path.symlink_to("nowhere/at/all"),
    "link-loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/null"),
    "proc": lambda path: path.symlink_to("/proc"),
    "fifo": lambda path: __import__("os").mkfifo(path),
}
INSIDE = ("arena", "fingerprint", "measured")


def _place(make: Callable[[Path], object], inside: str, box: Box) -> Command:
    if inside:
        (box.folder / "cache").mkdir()
    make(box.folder / "cache" / inside)
    return Command(args=train_args(box.base / "volumes"), names=["cache"], expect="either" if inside else "refused")


def _named(value: str, verb: str, box: Box) -> Command:
    args = train_args(box.base / "volumes") if verb == "train" else ["cache", verb]
    return Command(args=args, names=["HASTEN_CACHE", value, "cache"], expect="refused", env={"HASTEN_CACHE": value})


def trials() -> Iterator[Trial]:
    for pattern in FILES:
        for name in _SPOILS:
            for verb in VERBS:
                expect: Expect = "warned" if verb == "train" else "either"
                if verb == "verify" and pattern.endswith(".bin") and name not in ("surplus",):
                    expect = "refused"
                if pattern.startswith("fingerprint") or (verb == "train" and name == "surplus"):
                    expect = "either"
                if pattern.endswith("arena.json") and name.endswith(("-link", "-loop")):
                    expect = "either"  # as if the entry were not there: it is made again
                act = partial(_spoilt, pattern, SPOILT[name][0], verb, expect)
                if verb in ("train", "verify") or name in ("empty", "folder", "random-bytes"):
                    yield Trial("cache", f"{pattern}/{name}/{verb}", act)
        for verb in VERBS:
            yield Trial("cache", f"{pattern}/absent/{verb}", partial(_absent, pattern, verb))
    for name in ("cache", "out"):
        for size in ("4k", "12k"):
            yield Trial("cache", f"full-disk/{name}/{size}", partial(_small, name, size))
        yield Trial("cache", f"read-only/{name}", partial(_read_only, name))
    yield Trial("cache", "read-only-but-whole", _read_only_but_whole)
    for name, make in PLACES.items():
        yield Trial("cache", f"folder/{name}", partial(_place, make, ""))
        for inside in INSIDE:
            yield Trial("cache", f"folder/{inside}/{name}", partial(_place, make, inside))
    for value in (
        "/proc/nowhere",
        "/dev/null/x",
        "http://127.0.0.1:1/cache",
        "s3://bucket/cache",
    ):
        for verb in ("train", "ls", "prune"):
            # What can be no folder on this machine is an empty cache to look at.
            if verb == "train" or "://" in value:
                yield Trial("cache", f"$HASTEN_CACHE={value!r}/{verb}", partial(_named, value, verb))
