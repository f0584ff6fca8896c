"""Scaling figures that others have published, for holding the model against, each with where it is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hasten.study.scale.predict.links import LINKS, Network

DGX_A100 = Network(between=LINKS["ib200"], inside=LINKS["nvlink3"], per_node=8, adapters=8)
DGX_H100 = Network(between=LINKS["ib400"], inside=LINKS["nvlink4"], per_node=8, adapters=8)

BRATS_SOURCE = (
    "Project-MONAI/tutorials, acceleration/fast_model_training_guide.md, figure brats_benchmark.png: SegResNet on "
    "Decathlon Task01, A100, TF32, seconds to mean Dice 0.78, read off the figure"
)
BRATS_S: Mapping[int, float] = {8: 2691.0, 16: 1980.0, 32: 1114.0}
"""GPUs to seconds, with the data cached on the GPUs. Epochs to the target are not published for each, so part of what
differs may be convergence."""
BRATS_UNCACHED_S: Mapping[int, float] = {1: 31430.0, 8: 4766.0}
"""GPUs to seconds, without that cache."""
BRATS_WEIGHTS = 4_702_227
"""Of monai.networks.nets.SegResNet with the tutorial's arguments (4 channels in, 3 out, 16 filters, [1, 2, 2, 4])."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """One row of MLPerf Training's unet3d (KiTS19, 128^3 patches)."""

    gpus: int
    """Of the training: those that only evaluate are not counted."""
    batch: int
    """Global."""
    samples_per_s: float
    spatial: int = 1
    """GPUs that share one volume."""

    @property
    def step_s(self) -> float:
        return self.batch / self.samples_per_s


MLPERF_SOURCE = (
    "mlcommons/training_results_v4.0, NVIDIA/results/*/unet3d/mxnet/result_*.txt: H100 SXM, the means without the 4 "
    "best and 4 worst of 40 runs; 9 nodes of which 2 evaluate, 96 of which 12 do"
)
MLPERF_H100: tuple[Submission, ...] = (
    Submission(gpus=8, batch=56, samples_per_s=579.9),
    Submission(gpus=56, batch=56, samples_per_s=3526.0),
    Submission(gpus=672, batch=84, samples_per_s=11029.0, spatial=8),
)
UNET3D_GRADIENT_BYTES = 2 * 19_000_000
"""fp16 gradients of the benchmark's U-Net with 32 to 320 channels: about 19 million weights."""

NNUNET_SOURCE = (
    "NVIDIA/DeepLearningExamples, PyTorch/Segmentation/nnUNet/README.md: 3-D nnU-Net, DGX A100 80G, mixed precision, "
    "images/s by batch a GPU"
)
NNUNET_A100: Mapping[int, tuple[float, float]] = {1: (24.6, 187.0), 2: (27.5, 221.0), 4: (30.0, 234.5)}
"""Batch a GPU to images/s of 1 and of 8 GPUs."""
NNUNET_GRADIENT_BYTES = 4 * 31_200_000
"""fp32 gradients of its network: 31.2 million weights."""
