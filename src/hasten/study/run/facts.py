"""Measurements of a run, as input to the findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.config.schema import RunConfig
from hasten.config.settled import PlannedRun
from hasten.study.finding import Finding, gain_of
from hasten.study.run.assemble import Cold
from hasten.study.run.probes import Arms
from hasten.study.run.rare import Rare
from hasten.study.split import Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything that a finding may depend on."""

    config: PlannedRun
    given: RunConfig
    """As the user wrote it."""
    split: Split
    cuda: bool
    inline: bool
    """Whether the training device makes its batches itself."""
    home: str
    """Of the arena, as `Arena.home`."""
    rare: Rare
    cold: Cold | None
    arms: Arms
    operations: dict[str, float] = field(default_factory=dict)
    """As `operation_costs` gives them."""
    probabilities: dict[str, float] = field(default_factory=dict)
    """Of each operation of the augmentation, by its name."""
    variants: dict[str, float] = field(default_factory=dict)
    """As `slower_than` gives them."""
    variant: str = ""
    """The one that the run has."""
    threads: int = 1
    cores: int = 1
    reads: float = 0.0
    """Values of the device that are read in a step, outside the step itself."""
    disk_s: float = 0.0
    """Seconds of a batch that go into fetching its voxels from the disk."""
    captured: bool = False
    """Whether the step runs as a CUDA graph."""
    isal: bool = True
    others: float = 0.0

    def seconds(self, *names: str) -> float:
        """Of a step that these parts take."""
        return sum(self.split.parts.get(name, 0.0) for name in names)

    def finding(self, cost_s: float, **texts: str) -> Finding:
        """What costs so many seconds of a step, all of which its cure saves."""
        return Finding(cost_s=cost_s, gain=gain_of(cost_s, self.split.step_s), **texts)  # type: ignore[arg-type]
