"""The checkpoint to resume from: one file, under a fixed name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.files import sync_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A valid checkpoint."""

    path: Path
    step: int
    content: dict[str, Any]


class Checkpoints:
    """`write` puts a new checkpoint in the place of NAME.pt, in one rename; `newest` reads it.

    One process at a time writes to a folder: of several ranks, the first.
    """

    def __init__(self, folder: str | Path, *, name: str = "last") -> None:
        self.folder, self.name = Path(folder), name
        self._swept = False

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        return self.folder / f"{self.name}.pt"

    def write(self, content: dict[str, Any]) -> None:
        """Write a checkpoint, `content["step"]` steps into the run.

        Raises OSError with the one before intact, and ValueError as `write_checkpoint` does.
        """
        self._sweep()
        write_checkpoint(self.path, content)

    def newest(self) -> Checkpoint | None:
        """The checkpoint; None if there is none. Raises ValueError, as `read_checkpoint` does, for a damaged one."""
        if not self.path.exists():
            return None
        content = read_checkpoint(self.path)
        step = content.get("step")
        if not isinstance(step, int):
            raise ValueError(f"{self.path}: not a checkpoint to resume from (it has no step)")
        return Checkpoint(path=self.path, step=step, content=content)

    def _sweep(self) -> None:
        """Remove what a killed process left half-written, and make what it completed durable, once."""
        if not self._swept and self.folder.exists():
            sync_folder(self.folder)
            for leftover in self.folder.glob(f".{self.name}.pt.*"):
                leftover.unlink(missing_ok=True)
        self._swept = True
