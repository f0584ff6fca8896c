"""A folder of checkpoints to resume from: the newest under a fixed name, older ones with their step in the name."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.files import sync_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A valid checkpoint."""

    path: Path
    step: int
    content: dict[str, Any]


class Checkpoints:
    """`write` puts a new checkpoint in the place of the newest; `newest` finds the newest that is valid.

    The newest is NAME.pt. With `keep` above 1 the ones before it stay as NAME-STEP.pt, `keep` in all. They are the same
    files under other names, so that keeping them copies nothing. One process at a time writes to a folder: of several
    ranks, the first.
    """

    def __init__(self, folder: str | Path, *, name: str = "last", keep: int = 1) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: must be 1 or more")
        self.folder, self.name, self.keep = Path(folder), name, keep
        self._step: int | None = None
        """Step of NAME.pt, once it is known."""
        self._swept = False

    @property
    def path(self) -> Path:
        """Path of the newest."""
        return self.folder / f"{self.name}.pt"

    def paths(self) -> list[Path]:
        """All existing files, damaged or not, the newest first."""
        return [path for path in (self.path,) if path.exists()] + [path for _, path in self._older()]

    def write(self, content: dict[str, Any]) -> None:
        """Write a checkpoint, `content["step"]` steps into the run; then remove those that are too many.

        Those of the same or a later step belong to an abandoned course of training and are removed, too. Raises
        OSError with all earlier files intact, and ValueError as `write_checkpoint` does.
        """
        step = content["step"]
        self._sweep()
        if self.keep > 1:
            self._keep_newest()
        write_checkpoint(self.path, content)
        # Only now: the new one is on the disk, whatever happens next.
        self._step = step
        self._prune(step)

    def newest(self) -> Checkpoint | None:
        """The newest valid checkpoint, with a warning for each damaged newer one; None if there is none.

        Raises ValueError, as `read_checkpoint` does of the newest, if there are some and none is valid.
        """
        damaged: list[ValueError] = []
        for path in self.paths():
            try:
                content = read_checkpoint(path)
                step = content.get("step")
                if not isinstance(step, int):
                    raise ValueError(f"{path}: not a checkpoint to resume from (it has no step)")
            except ValueError as error:
                damaged.append(error)
                continue
            for each in damaged:
                log.warning("%s. It is passed over, and %s of step %d taken", each, path.name, step)
            if path == self.path:
                self._step = step
            return Checkpoint(path=path, step=step, content=content)
        if damaged:
            raise damaged[0]
        return None

    def _older(self) -> list[tuple[int, Path]]:
        """(step, path) of NAME-STEP.pt, the latest step first."""
        named = re.compile(rf"{re.escape(self.name)}-(\d+)\.pt")
        matches = ((named.fullmatch(path.name), path) for path in self.folder.glob("*.pt"))
        return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)

    def _keep_newest(self) -> None:
        """Give NAME.pt its second name, unless it is damaged."""
        if not self.path.exists():
            return
        if self._step is None:
            try:
                self._step = int(read_checkpoint(self.path)["step"])
            except (ValueError, KeyError, TypeError):
                return
        # Processes that are killed again and again before they come to remove any would leave one more each.
        self._prune(self._step)
        older = self.folder / f"{self.name}-{self._step:08d}.pt"
        try:
            older.hardlink_to(self.path)
        except OSError:
            # A file system without links: for a moment there is no NAME.pt, and `newest` finds this one.
            self.path.rename(older)
        sync_folder(self.folder)

    def _prune(self, step: int) -> None:
        """Keep the newest of those before `step`, which NAME.pt is of."""
        older = self._older()
        earlier = [path for at, path in older if at < step][: self.keep - 1]
        for _, path in older:
            if path not in earlier:
                path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove files that a killed process left half-written, and make the complete ones durable, once."""
        if not self._swept and self.folder.exists():
            sync_folder(self.folder)
            for pattern in (f".{self.name}.pt.*", f".{self.name}-*.pt.*"):
                for leftover in self.folder.glob(pattern):
                    leftover.unlink(missing_ok=True)
        self._swept = True
