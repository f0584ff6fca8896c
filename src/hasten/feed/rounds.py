"""Programs that take turns: the cases are dealt anew every so many samples, and each round has a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from hasten.feed.staged import Batch, Program, Segment, Stage, StagedProgram, batches_of, cut_by_stage, stage_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Which round each step of a run belongs to: a function of the step, so that a run can be gone on with anywhere.

    A round's first step is the first whose batch begins after `samples` times the number of the round.
    """

    stages: tuple[Stage, ...]
    """Of the whole run; one where patches keep their size."""
    samples: int
    """Of a round, all ranks together."""

    def at(self, step: int) -> int:
        """The round of a step."""
        stage = stage_at(self.stages, step)
        return (step + stage.ahead) * stage.batch_size // self.samples

    def cut(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Steps `first` ... `last` - 1, cut where a round ends: (round, first, last) of each piece."""
        found: list[tuple[int, int, int]] = []
        for stage, begin, end in cut_by_stage(self.stages, first, last):
            while begin < end:
                number = (begin + stage.ahead) * stage.batch_size // self.samples
                after = -(-(number + 1) * self.samples // stage.batch_size) - stage.ahead
                until = min(end, after)
                if found and found[-1][0] == number:
                    found[-1] = (number, found[-1][1], until)
                else:
                    found.append((number, begin, until))
                begin = until
        return found


class RoundedProgram:
    """`program(step)` gives the batch of that step, by the program of the step's round.

    make: makes the program of a round; it is called when a batch of that round is first asked for, by all ranks at the
    same step, since cases may travel between them then. Only one round's program is held.
    """

    def __init__(self, rounds: Rounds, make: Callable[[int], Program | StagedProgram], *, first: int = 0) -> None:
        """first: the step that the run begins with."""
        self.rounds, self._make = rounds, make
        self._round = rounds.at(first)
        self._program: Program | StagedProgram | None = None
        self.of(self._round)

    def of(self, number: int) -> Program | StagedProgram:
        """The program of a round. That of another one, and what it held in memory, is dropped first."""
        found = self._program if number == self._round else None
        if found is None:
            self._program = None
            found = self._make(number)
            self._round, self._program = number, found
        return found

    @property
    def now(self) -> Program | StagedProgram:
        """The program of the round that was asked for last."""
        assert self._program is not None
        return self._program

    @property
    def compiled(self) -> bool:
        return self.now.compiled

    @property
    def why(self) -> str:
        return self.now.why

    @property
    def compile_seconds(self) -> float:
        return self.now.compile_seconds

    def __call__(self, step: int) -> Batch:
        """The batch of a step, or this rank's share of it."""
        return next(self.batches(step, step + 1))

    def stage(self, step: int) -> Stage:
        """The stage of a step; steps after the last stage have its shape."""
        return stage_at(self.rounds.stages, step)

    def samples(self, first: int, last: int) -> int:
        """Patches in steps `first` ... `last` - 1, of all ranks."""
        cut = cut_by_stage(self.rounds.stages, first, last)
        return sum((end - begin) * stage.batch_size for stage, begin, end in cut)

    def segments(self, first: int, last: int) -> Generator[Segment, None, None]:
        """Steps `first` ... `last` - 1, cut where the round or the shape changes. A round's are made when it begins."""
        for number, begin, end in self.rounds.cut(first, last):
            program = self.of(number)
            if isinstance(program, StagedProgram):
                yield from program.segments(begin, end)
            else:
                (stage,) = self.rounds.stages
                yield Segment(program, begin + stage.ahead, end + stage.ahead)
            del program  # or the next round's cases would find this one's still in memory

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1; each is the same whatever the first one was."""
        return batches_of(self.segments(first, last))
