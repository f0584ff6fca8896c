"""`Task`: one training job that every arm does, with all that no arm may differ in, and its JSON form."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hasten.config.schema import PrepareConfig, RunConfig, Spacing, Triple
from hasten.config.settled import PlannedNetwork, PlannedRun
from hasten.config.validate import checked_as
from hasten.observe.rundir import write_json

if TYPE_CHECKING:
    from hasten.cases.types import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerSettings:
    """What MONAI and other libraries train with beside Hasten.

    The defaults are those of MONAI's fast training tutorial.
    """

    patch: Triple | None = None
    """Crop (D, H, W) in voxels; None takes the patch that Hasten trains with."""
    roi: Triple | None = None
    """Window (D, H, W) of the validation; None takes the crop."""
    overlap: float = 0.25
    """Share of a window that overlaps its neighbour."""
    cases: int = 2
    """Cases in a batch."""
    crops: int = 4
    """Crops of each case in a batch."""
    validate_every: int = 1
    """Epochs between validations."""
    regular_lr: float = 2e-4
    """Learning rate of Adam, with which the lower rungs train."""
    loss: Literal["dice_ce", "dice_focal"] = "dice_ce"
    """Loss of the rung of algorithms, instead of plain Dice."""
    optimizer: Literal["sgd", "novograd"] = "sgd"
    """Optimizer of the rung of algorithms, instead of Adam."""
    lr: float = 0.2
    weight_decay: float = 4e-5
    nnunet_features: tuple[int, ...] | None = None
    """Features of each stage of nnU-Net's network, finest first, in the place of those that it plans."""
    nnunet_batch_size: int | None = None
    """Likewise its batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCase:
    id: str
    image: tuple[str, ...]
    """One file per channel, or one file that holds them all."""
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One training job. Space is (D, H, W); D is 1 where `spatial_dims` is 2."""

    name: str
    train: tuple[TaskCase, ...]
    validation: tuple[TaskCase, ...]
    labels: dict[int, str]
    """Label value to class name, 0 the background. Values need not be contiguous."""
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Overlapping classes to learn instead of `labels`, name to label values; empty where classes do not overlap."""
    region_values: dict[str, int] = field(default_factory=dict)
    channels: tuple[str, ...] = ("image",)
    spatial_dims: Literal[2, 3] = 3
    modality: str = ""
    prepare: PrepareConfig
    """With every field settled; spacing (0, 0, 0) keeps each case's own."""
    network: PlannedNetwork
    """Strides are (D, H, W)."""
    metric: Literal["dice", "iou"] = "dice"
    target: float
    patch: Triple
    """Crop of the peers; Hasten's own is in `run`."""
    roi: Triple
    overlap: float = 0.25
    peer: PeerSettings = field(default_factory=PeerSettings)
    schedule: int
    """Patches of Hasten's own schedule."""
    run: dict[str, Any]
    """Hasten's run as `hasten.config.load.to_dict` gives it; what is None there is decided in the arm's own clock."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """What is scored: the regions, or the foreground classes by rising label value."""
        return tuple(self.regions) or tuple(name for _, name in sorted(self.labels.items()))[1:]

    @property
    def num_outputs(self) -> int:
        """Channels of the network's scores: one for each region, or for each class with the background."""
        return len(self.regions) or len(self.labels)

    @property
    def spacing(self) -> Spacing | None:
        """Target spacing (D, H, W) in mm; None where each case keeps its own."""
        given = self.prepare.spacing
        return given if given is not None and any(given) else None

    @property
    def patches_per_epoch(self) -> int:
        """An epoch of every arm is so many patches: `peer.crops` of each training case."""
        return len(self.train) * self.peer.crops


def peer_of(settings: dict[str, Any] | None) -> PeerSettings:
    """The section `peer` of a recipe; the defaults for None. Raises ValueError for mistakes."""
    peer, mistakes = checked_as(PeerSettings, settings or {}, ("peer",))
    if mistakes:
        raise ValueError("; ".join(message for _, message in mistakes))
    return peer


def task_of(config: RunConfig, peer: PeerSettings | None = None, *, name: str = "") -> Task:
    """The task of a run: cases, split, preparation and network as its plan settles them.

    Raises ValueError for what is wrong with the run, a case without a label, and a run without train.target.
    """
    from hasten.config.load import to_dict
    from hasten.training.plan import plan_run

    peer = peer or PeerSettings()
    planned = plan_run(config)
    if config.train.target is None:
        raise ValueError("train.target: say what the arms are to reach, such as train.target=0.85")
    full, case_set = planned.config, planned.case_set
    if case_set.ignore is not None:
        raise ValueError(f"{case_set.source}: label {case_set.ignore} is ignored, which the other arms can't do")
    if case_set.regions and peer.loss == "dice_ce":
        peer = dataclasses.replace(peer, loss="dice_focal")  # MONAI's DiceCE has no form for classes that overlap
    patch = peer.patch or full.sample.patch
    _check(full, {"peer.patch": patch, "peer.roi": peer.roi or patch})
    return Task(
        name=name or case_set.name,
        train=task_cases(planned.train),
        validation=task_cases(planned.validation),
        labels=dict(case_set.labels),
        regions=dict(case_set.regions),
        region_values=dict(case_set.region_values),
        channels=case_set.channels,
        spatial_dims=2 if case_set.spatial_dims == 2 else 3,
        modality=case_set.modality,
        prepare=full.prepare,
        network=full.network,
        metric=full.train.metric,
        target=config.train.target,
        patch=patch,
        roi=peer.roi or patch,
        overlap=peer.overlap,
        peer=peer,
        schedule=full.train.steps * full.sample.batch_size,
        run=to_dict(config),
    )


def _check(full: PlannedRun, patches: dict[str, Triple]) -> None:
    from hasten.nets.build import divisor

    if isinstance(full.prepare.intensity, tuple):
        kinds = ", ".join(full.prepare.intensity)
        raise ValueError(f"prepare.intensity: [{kinds}]; the arms scale all channels alike, set one for all")
    if full.network.deep_supervision:
        raise ValueError(
            f"network.deep_supervision: {full.network.deep_supervision}; the arms train networks of one output, set 0"
        )
    unit = divisor(full.network)
    for field_name, patch in patches.items():
        if any(side % by for side, by in zip(patch, unit, strict=True)):
            raise ValueError(f"{field_name}: {list(patch)} is not a multiple of {list(unit)}, as network.strides asks")


def task_cases(cases: tuple[Case, ...]) -> tuple[TaskCase, ...]:
    """With absolute paths. Raises ValueError for a case without a label."""
    without = [case.id for case in cases if case.label is None]
    if without:
        raise ValueError(f"case {without[0]}: has no label; the arms train and validate on labels")
    return tuple(
        TaskCase(id=case.id, image=tuple(str(path.absolute()) for path in case.image), label=str(case.label.absolute()))
        for case in cases
        if case.label is not None
    )


def write_task(path: Path, task: Task) -> Path:
    """Write it as JSON, atomically; returns `path`."""
    write_json(path, dataclasses.asdict(task))
    return path


def read_task(path: Path) -> Task:
    """What `write_task` wrote. Raises ValueError for a file that is missing or no task."""
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(Task).validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give the file that `write_task` wrote") from None
    except ValueError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else error
        raise ValueError(f"{path}: not a task as `write_task` writes it ({first})") from None
