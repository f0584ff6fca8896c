"""MONAI's fast arm with its data from Hasten: the prepared arena and the batch program. All else is MONAI's.

Cases are prepared by Hasten into an empty cache, batches come from its feed, eager or compiled as it measures, and
validation volumes from the arena. Network, loss, optimizer, autocast, loop and sliding window are those of the rung
below. An epoch is as many patches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.ladder.arms.hasten import engine_config, fresh_cache
from benchmarks.ladder.record import Record, arm_arguments
from hasten.observe.clock import process_start_seconds

if TYPE_CHECKING:
    from benchmarks.ladder.task import Task
    from hasten.augment.program import Program
    from hasten.cache.arena import Arena


def main(argv: Sequence[str] | None = None) -> None:
    record = Record(arm="program", given=arm_arguments(str(__doc__).splitlines()[0], argv), notes=str(__doc__))
    with fresh_cache():
        _train(record)


def _train(record: Record) -> None:
    from benchmarks.ladder.algorithms import fast_loss, fast_optimizer
    from benchmarks.ladder.chain import network_of
    from benchmarks.ladder.loop import Arm, may_autocast, run, set_up
    from hasten.training.choose.batch_program import choose_program
    from hasten.training.plan import plan_run
    from hasten.training.prepare_cases import arena_of

    given, task = record.given, record.given.task
    device = set_up(record)
    config = engine_config(given)
    record.seconds["import"] = process_start_seconds()

    start = time.perf_counter()
    planned = plan_run(config)
    arena = arena_of(planned)
    record.seconds["cache"] = time.perf_counter() - start
    program, accelerators = choose_program(planned, arena)
    record.engaged = {name: {"on": each.on, "why": each.reason} for name, each in accelerators.items()}
    net = network_of(task, xyz=False).to(device)
    arm = Arm(
        task=task,
        net=net,
        loss=fast_loss(task),
        optimizer=fast_optimizer(task, net),
        train=_Epochs(task, program),
        validation=_Volumes(task, arena, [case.id for case in planned.validation]),
        roi=task.roi[3 - task.spatial_dims :],
        device=device,
        amp=may_autocast(task, device),
    )
    record.settled = {"amp": arm.amp}
    run(arm, record)


@dataclass
class _Epochs:
    """An epoch of the feed each time that it is iterated, each going on where the last one ended."""

    task: Task
    program: Program
    done: int = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from benchmarks.ladder.record import class_masks
        from hasten.feed.feed import Feed

        peer = self.task.peer
        first = self.done
        self.done += -(-self.task.patches_per_epoch // (peer.cases * peer.crops))
        for batch in Feed(self.program, first=first, last=self.done):
            label = batch["label"]
            if self.task.regions:
                label = class_masks(label[:, 0], self.task).transpose(0, 1).float()
            yield {"image": batch["image"], "label": label}


@dataclass(frozen=True)
class _Volumes:
    """Validation cases, one a batch."""

    task: Task
    arena: Arena
    ids: Sequence[str]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for case in self.arena.index(tuple(self.ids)):
            image, label = self.arena.image(case)[None].float(), self.arena.label(case)[None, None]
            if self.task.spatial_dims == 2:
                image, label = image[:, :, 0], label[:, :, 0]
            yield {"image": image, "label": label}


if __name__ == "__main__":
    main()
