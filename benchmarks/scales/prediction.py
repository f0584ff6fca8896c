"""What the scaling model predicts against what was measured: logs of a study, and figures that others have published.

The model's form was decided by reasoning. Every miss is predicted over measured, less 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.scaling.logs import Mode, read_logs
from hasten.scaling.predict import Source, Step, fit_epochs, predict

FITTED_ON = (1, 2, 4)
NVLINK, INFINIBAND_NDR = 235, 45
"""GB/s each way in large all-reduces."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Seconds of a step on one count of GPUs, and what a step of one GPU tells of it."""

    source: str
    gpus: int
    measured_s: float
    compute_s: float
    gradient_bytes: float
    link: float
    """GB/s of the slowest between the GPUs."""
    mode: Mode = "weak"
    fixed_share: float = 0.05


_BRATS = (
    "Project-MONAI/tutorials, fast_model_training_guide.md, figure brats_benchmark.png: SegResNet on Decathlon Task01, "
    "A100, TF32, uncached, seconds to mean Dice 0.78, read off the figure, over 80 epochs of 388 steps"
)
_MLPERF = (
    "mlcommons/training_results_v4.0, NVIDIA, unet3d, H100: 56 samples a step, 579.9 samples/s of 8 GPUs, 3526 of 56; "
    "5 % of the 8 GPUs' step taken as fixed"
)
_NNUNET = "NVIDIA/DeepLearningExamples, PyTorch/Segmentation/nnUNet/README.md: DGX A100 80G, mixed precision"
_FIXED_S = 0.05 * 56 / 579.9
_MLPERF_S = 56 / 7 * (56 / 579.9 - _FIXED_S) + _FIXED_S
# Weights of the networks: SegResNet 4.7 million, MLPerf's U-Net 19 million in fp16, nnU-Net's 31.2 million.
PUBLISHED = (
    Published(source=_BRATS, gpus=8, measured_s=8 * 4766 / (80 * 388), compute_s=31430 / (80 * 388),
              gradient_bytes=4 * 4_702_227, link=NVLINK),
    Published(source=_MLPERF, gpus=56, measured_s=56 / 3526, compute_s=_MLPERF_S, gradient_bytes=2 * 19_000_000,
              link=INFINIBAND_NDR, mode="strong", fixed_share=_FIXED_S / _MLPERF_S),
    *(
        Published(source=f"{_NNUNET}, batch {batch}", gpus=8, measured_s=8 * batch / eight, compute_s=batch / one,
                  gradient_bytes=4 * 31_200_000, link=NVLINK)
        for batch, one, eight in ((1, 24.6, 187.0), (2, 27.5, 221.0), (4, 30.0, 234.5))
    ),
)  # fmt: skip


def validations(logs: Path) -> dict[str, Any]:
    """All comparisons, ready for JSON. logs: the folder of the 16 logs."""
    return {"logs": scaling_logs(logs), "published": [_published(row) for row in PUBLISHED]}


def scaling_logs(folder: Path) -> dict[str, Any]:
    """Fitted on 1, 2 and 4 GPUs, predicted for all; the epoch is the median of all but the first."""
    results: dict[str, Any] = {}
    logs = read_logs(folder).logs
    for strategy in sorted({log.strategy for log in logs}):
        epochs = {log.world: seconds for log in logs if log.strategy == strategy and (seconds := log.epoch_s(None))}
        source = fit_epochs({world: epochs[world] for world in FITTED_ON}, "weak")
        rows = [_row(source, world, seconds) for world, seconds in epochs.items()]
        unseen = [row for row in rows if not row["fitted"]]
        results[strategy] = {
            "rows": rows,
            "worst_unseen_miss": max((abs(row["miss"]) for row in unseen), default=None),
            "unseen_in_range": f"{sum(row['in_range'] for row in unseen)} of {len(unseen)}",
            "notes": source.notes,
        }
    return results


def _row(source: Source, workers: int, measured: float) -> dict[str, Any]:
    one = predict(source, workers)
    low, high = one.epoch_range
    return {
        "workers": workers,
        "fitted": workers in FITTED_ON,
        "predicted_s": one.epoch_s,
        "range_s": (low, high),
        "measured_s": measured,
        "miss": one.epoch_s / measured - 1,
        "in_range": low <= measured <= high,
    }


def _published(row: Published) -> dict[str, Any]:
    """The step from one GPU's and the link's rate alone."""
    step = Step(
        mode=row.mode,
        compute_s=row.compute_s,
        gradient_bytes=row.gradient_bytes,
        bytes_per_s=1e9 * row.link,
        fixed_share=row.fixed_share,
    )
    # Of weak scaling, an epoch of one step on one GPU is 1/W of a step on W.
    predicted = sum(step(row.gpus).values()) * (row.gpus if row.mode == "weak" else 1)
    return {
        "source": row.source,
        "workers": row.gpus,
        "predicted_s": predicted,
        "measured_s": row.measured_s,
        "miss": predicted / row.measured_s - 1,
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """Every row as "what: workers, predicted, measured, miss"."""
    groups: Sequence[tuple[str, Any]] = [
        (strategy, row) for strategy, rows in result["logs"].items() for row in rows["rows"]
    ]
    return [
        f"{name}: {row['workers']} workers, predicted {row['predicted_s']:.4g} s, measured {row['measured_s']:.4g} s, "
        f"miss {100 * row['miss']:+.1f} %{' (fitted)' if row.get('fitted') else ''}"
        for name, row in (*groups, *((row["source"], row) for row in result["published"]))
    ]
