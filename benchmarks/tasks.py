"""Tasks of the ladder that benchmarks share: one preparation for MR and one for CT, one network, one split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ladder.task import PeerSettings, Task, task_cases
from hasten.config.schema import SplitConfig, Triple
from hasten.config.settled import PlannedNetwork

if TYPE_CHECKING:
    import torch

    from hasten.config.schema import PrepareConfig

CT_WINDOW = (-57.0, 164.0)
"""HU; the spleen tutorial's."""
SPLEEN_SPACING = (2.0, 1.5, 1.5)
"""mm (D, H, W); the spleen tutorial's."""
CROPS_ONLY = (
    "sample.flip_prob=[0,0,0]", "sample.affine_prob=0", "sample.brightness_prob=0", "sample.contrast_prob=0",
    "sample.gamma_prob=0", "sample.noise_prob=0",
)  # fmt: skip
"""Settings of a run without augmentation."""
NETWORK = PlannedNetwork(
    name="unet", channels=(16, 32, 64, 128), strides=((2, 2, 2),) * 3, num_res_units=2, norm="instance", act="prelu"
)


def prepare_config(kind: str, spacing: Sequence[float] | None) -> PrepareConfig:
    """`mr`: z-score; `ct`: the window above, cropped to the foreground. `spacing` is (D, H, W) mm; None: as it is."""
    from hasten.config.schema import PrepareConfig

    depth, height, width = spacing or (0.0, 0.0, 0.0)  # zeros keep every case's own
    is_ct = kind == "ct"
    return PrepareConfig(
        spacing=(depth, height, width),
        intensity="window" if is_ct else "zscore",
        window=CT_WINDOW if is_ct else (0.0, 1.0),
        crop_foreground=is_ct,
    )


def bench_task(
    data: Path | None,
    kind: str = "mr",
    *,
    spacing: Sequence[float] | None = None,
    patch: Triple = (32, 32, 32),
    crops: int = 4,
    target: float = 1.0,
) -> Task:
    """The task of a 3-D data set with the default split; without `data` one of no cases, for its transforms."""
    from hasten.cases.sources import load_case_set
    from hasten.cases.split import split_cases

    cases = load_case_set(data) if data is not None else None
    train, held = split_cases(cases, SplitConfig()) if cases is not None else ((), ())
    return Task(
        name=cases.name if cases is not None else "",
        train=task_cases(train),
        validation=task_cases(held),
        labels=dict(cases.labels) if cases is not None else {0: "background", 1: "foreground"},
        prepare=prepare_config(kind, spacing),
        network=NETWORK,
        target=target,
        patch=patch,
        roi=patch,
        peer=PeerSettings(patch=patch, crops=crops),
        schedule=0,
        run={},
    )


def rows_of_all(task: Task) -> list[dict[str, str]]:
    """Rows {"image", "label"} of every case, training and validation, by id."""
    from benchmarks.ladder.chain import rows_of

    return rows_of(sorted((*task.train, *task.validation), key=lambda case: case.id))


def network(num_classes: int) -> torch.nn.Module:
    """`NETWORK` on one channel."""
    from hasten.nets.build import build_network

    return build_network(NETWORK, num_channels=1, num_classes=num_classes, spatial_dims=3)
