"""Peak memory of deciding a label map of many classes, beyond the network, the image and the label map."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.engines.sliding import status


class _Enough(Exception):
    """As many windows as were asked for have gone through."""


def labels(job: dict[str, Any]) -> dict[str, float]:
    """`mib` at the peak beyond the image and what the network alone needs, `seconds`, and `windows` that were run.

    The stand-in network is one convolution of 1^3: its cost is that of writing all scores of a window.
    """
    import time

    import torch
    from torch import nn

    from hasten.engine.infer import Inference, infer_on_grid

    torch.manual_seed(0)
    network = nn.Conv3d(1, job["classes"], 1).eval()
    window, shape = tuple(job["window"]), tuple(job["shape"])
    image = torch.randn(1, *shape).half()
    windows = 0

    class Counted(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            nonlocal windows
            windows += len(batch)
            if windows > (job["most_windows"] or windows):
                raise _Enough
            return network(batch)

    how = Inference(
        patch=window, divisor=(1, 1, 1), whole_up_to=0, overlap=job["overlap"], batch_size=1, precision="fp32",
        channels_last=False, spatial_dims=3, device=torch.device("cpu"), classes=job["classes"],
        sums_bytes=job["sums_bytes"],
    )  # fmt: skip

    def alone() -> None:
        with torch.inference_mode():
            network(torch.zeros(1, 1, *window))

    alone_mib = _peak(alone)
    windows, began = 0, time.perf_counter()

    def run() -> None:
        with suppress(_Enough):
            infer_on_grid(Counted(), image, tuple(job["new_shape"]), how)

    peak = _peak(run)
    return {"mib": peak - alone_mib, "seconds": time.perf_counter() - began, "windows": windows, "network": alone_mib}


def _peak(work: Callable[[], object]) -> float:
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    work()
    return (status("VmHWM") - before) / 2**10


if __name__ == "__main__":
    print(json.dumps(labels(json.loads(sys.argv[1]))))
