"""Work between steps: one validation and one checkpoint, scaled to how often the run has them."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from hasten.engine.checkpoint_folder import Checkpoints
from hasten.engine.components import RunComponents
from hasten.engine.saver import Saver
from hasten.engine.state import training_state
from hasten.engine.validate import validate
from hasten.optim.schedule import multiples_before
from hasten.study.environment.rates import synchronize


@dataclass(frozen=True, kw_only=True, slots=True)
class Rare:
    """Seconds of one validation and one checkpoint, and how often the run has them."""

    validation_s: float
    """Time of all validation cases."""
    timed_cases: int
    """Cases on which that was measured."""
    validations: int
    checkpoint_s: float
    """Time for which one stops the training."""
    write_s: float
    """Time until one is on disk, in parallel with the training."""
    checkpoints: int
    steps: int
    """Steps of the run."""

    @property
    def validation_step_s(self) -> float:
        """Spread over the steps."""
        return self.validation_s * self.validations / self.steps

    @property
    def checkpoint_step_s(self) -> float:
        return self.checkpoint_s * self.checkpoints / self.steps


def measure_rare(components: RunComponents, folder: Path, *, cases: int, step_s: float, seconds: float) -> Rare:
    """Time a validation of a few cases and a checkpoint in `folder`. cases: validation cases of the run."""
    train = components.planned.config.train
    validated_s, timed = _validation(components, seconds)
    stands, writes = save_checkpoint(components, folder)
    # The next save waits for the one before it.
    stands += max(0.0, writes - train.checkpoint_every * step_s)
    scale = cases / len(components.planned.validation)
    return Rare(
        validation_s=validated_s * scale,
        timed_cases=timed,
        # At regular intervals from the first on, and at the end.
        validations=-(-train.steps // train.validate_every)
        - multiples_before(train.validate_from, train.steps, train.validate_every),
        checkpoint_s=stands,
        write_s=writes,
        checkpoints=-(-train.steps // train.checkpoint_every),
        steps=train.steps,
    )


def _validation(components: RunComponents, seconds: float) -> tuple[float, int]:
    """Seconds for all cases of `components`, by their voxels, and how many were timed."""
    cases = components.planned.validation
    voxels = [components.arena.label(case).numel() for case in components.arena.index(tuple(case.id for case in cases))]
    count = 1
    elapsed = validate_some(components, 1)  # warm-up: allocations and lookups of the first call don't count
    if elapsed < seconds:
        count = max(1, min(len(cases), 8, int((seconds - elapsed) / max(elapsed, 1e-6))))
        elapsed = validate_some(components, count)
    return elapsed * sum(voxels) / sum(voxels[:count]), count


def validate_some(components: RunComponents, count: int) -> float:
    """Seconds for the first `count` cases."""
    few = dataclasses.replace(components.planned, validation=components.planned.validation[:count])
    begin = time.perf_counter()
    validate(dataclasses.replace(components, planned=few), components.validated)
    synchronize(components.planned.device)
    return time.perf_counter() - begin


def save_checkpoint(components: RunComponents, folder: Path) -> tuple[float, float]:
    """Seconds for which a save stops the loop, and until it is written."""
    update = components.step.update
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder)
    begin = time.perf_counter()
    with Saver() as saver:
        state = training_state(
            network=update.weights, optimizer=update.optimizer, step=1, average=update.average, scaler=update.scaler,
        )  # fmt: skip
        saver.save(state, checkpoints.write)
        stands = time.perf_counter() - begin
    return stands, time.perf_counter() - begin
