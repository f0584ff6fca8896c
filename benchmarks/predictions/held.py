"""Peak memory of deciding a label map of many classes, beyond the network and the image."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.engines.sliding import status


class _Enough(Exception):
    """As many windows as were asked for have gone through."""


def labels(job: dict[str, Any]) -> dict[str, float]:
    """`mib` at the peak beyond the image and what the network alone needs, and `windows` that were run, of the first
    band of the volume.

    The stand-in network is one convolution of 1^3: its cost is that of writing all scores of a window. The label map
    counts as a whole, whatever part of it the band fills.
    """
    import torch
    from torch import nn

    from hasten.prediction import infer
    from hasten.prediction.infer import Inference, infer_on_grid

    torch.manual_seed(0)
    network = nn.Conv3d(1, job["classes"], 1).eval()
    window, shape, new_shape = tuple(job["window"]), tuple(job["shape"]), tuple(job["new_shape"])
    windows = 0

    class Counted(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            nonlocal windows
            windows += len(batch)
            if windows > (job["most_windows"] or windows):
                raise _Enough
            return network(batch)

    how = Inference(
        window=window, divisor=(1, 1, 1), whole_up_to=0, overlap=job["overlap"], batch_size=1, precision="fp32",
        channels_last=False, spatial_dims=3, device=torch.device("cpu"), classes=job["classes"],
        sums_bytes=job["sums_bytes"],
    )  # fmt: skip
    boxes = infer._bands(shape, how, halo=int(new_shape != shape))
    box = boxes[0]
    infer.bands = lambda *_, **__: [box]  # type: ignore[assignment]
    if len(boxes) > 1:
        infer.kept_memory = nullcontext  # type: ignore[assignment]  # as with all bands

    def alone() -> None:
        with torch.inference_mode():
            network(torch.zeros(1, 1, *window))

    image, alone_mib = torch.randn(1, *shape).half(), _peak(alone)
    windows = 0

    def run() -> None:
        with suppress(_Enough):
            infer_on_grid(Counted(), image, new_shape, how)

    peak = _peak(run)
    rest = prod(new_shape) * (1 - prod(side.stop - side.start for side in box) / prod(shape)) / 2**20
    return {"mib": peak - alone_mib + rest, "windows": windows, "network": alone_mib}


def _peak(work: Callable[[], object]) -> float:
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    work()
    return (status("VmHWM") - before) / 2**10


if __name__ == "__main__":
    print(json.dumps(labels(json.loads(sys.argv[1]))))
