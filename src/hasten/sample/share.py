"""A rank's share of every batch; the shares of all ranks are the batch of a single process."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Share:
    """The slots that rank `rank` of `size` makes in each of the `pieces` that a batch is accumulated in.

    Pieces are split, not the batch, so that the ranks' shares of a piece are the piece of a single process.
    """

    rank: int = 0
    size: int = 1
    pieces: int = 1
    """`train.accumulate`."""

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size
        assert self.pieces >= 1

    def count(self, batch_size: int) -> int:
        """Samples of a batch that this rank makes."""
        return batch_size // self.size

    def parts(self, total: int) -> range:
        """The parts, of `total` parts of the training cases, that this rank draws from."""
        return range(self.rank * total // self.size, (self.rank + 1) * total // self.size)

    def cut(self, rows: Tensor, batch_size: int) -> Tensor:
        """This rank's rows of (N * batch_size, ...): one for each sample of whole batches."""
        if self.size == 1:
            return rows
        each = batch_size // (self.pieces * self.size)
        return rows.view(-1, self.pieces, self.size, each, *rows.shape[1:])[:, :, self.rank].flatten(0, 2)


WHOLE = Share()
"""Share of a single process."""


def share_mistake(batch_size: int, accumulate: int, size: int, parts: int = 0) -> str | None:
    """Why a batch can't be dealt among `size` ranks (and `parts` parts of the cases), with the nearest that can.

    accumulate: `train.accumulate`; parts: `distribute.parts`, 0 for none.
    """
    if parts % size:
        return f"distribute.parts: {parts} parts can't be dealt among {size} processes; use {_nearest(parts, size)}"
    unit = accumulate * max(size, parts)
    if batch_size % unit == 0 or (size == 1 and not parts):
        return None
    among = f"{size} processes" if not parts else f"{parts} parts (distribute.parts)"
    pieces = f" in each of {accumulate} pieces (train.accumulate)" if accumulate > 1 else ""
    reason = f"sample.batch_size: {batch_size} can't be dealt among {among}{pieces}; use {_nearest(batch_size, unit)}"
    fits = [number for number in range(1, size) if batch_size % (accumulate * number) == 0]
    return reason if parts or not fits else f"{reason}, or start {fits[-1]} of them"


def _nearest(value: int, unit: int) -> str:
    lower, upper = value // unit * unit, -(-value // unit) * unit
    return f"{lower} or {upper}" if lower else str(upper)
