"""Decisions and accelerators of a run, who settled each, and the memory and step budgets of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hasten.config.schema import NetworkName

SetBy = Literal["user", "data", "measured", "default"]
"""Who settled a value: the settings of the user, the data set, a measurement on this machine, or a usual value."""


@dataclass(frozen=True, slots=True)
class Decision:
    value: Any
    reason: str
    """For people; nothing branches on it."""
    set_by: SetBy = "data"

    @property
    def open(self) -> bool:
        """Whether the plan decided it, and not the user."""
        return self.set_by != "user"


def set_by_user(value: Any) -> Decision:
    """The decision that a value of the settings stands for."""
    return Decision(value, GIVEN, "user")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Whether something that makes a run faster is on, and who or what settled that."""

    on: bool
    set_by: SetBy
    reason: str
    """For people; nothing branches on it."""


Accelerators = dict[str, Accelerator]
"""Accelerators by name, as summary.json and the report list them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much a step may hold, by the machine it runs on."""

    patch_voxels: int
    batch_voxels: int
    steps: int
    least_seen: float
    """Least share of the median case that a patch should show: voxels are made coarser up to that."""
    widest: int
    """Feature channels of the coarsest level are at most this many."""
    first: int
    """Feature channels of the finest level."""
    levels: int
    network: NetworkName
    """Network to use where the settings leave the choice."""
    network_why: str


CPU = Budget(
    patch_voxels=96_000,
    batch_voxels=200_000,
    steps=1500,
    least_seen=0.25,
    widest=256,
    first=16,
    levels=4,
    network="plainconvunet",
    network_why="the most accurate after some minutes on a CPU",
)
GPU = Budget(
    patch_voxels=128**3,
    batch_voxels=4 * 128**3,
    steps=10_000,
    least_seen=0.0,
    widest=320,
    first=32,
    levels=5,
    network="unet",
    network_why="the usual one on a GPU",
)

GIVEN = "set in the configuration"
"""Reason of a decision that the user took."""
