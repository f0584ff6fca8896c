"""Filling: seconds and peak memory of MONAI's CacheDataset and of Hasten's arena, as `benchmarks.cache_fill` does it.

Every fill is a process of its own with the files in the page cache; imports are not counted. MONAI prepares with all
cores as threads what its tutorial does, with the indices that crops are drawn from; Hasten stores as much and writes it
to its persistent cache besides. Peak memory is the largest resident set of the process. Hasten's then includes the
pages of its cache file that it has mapped, which the system can take back.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cache_fill import in_child, warm_page_cache
from benchmarks.caches.outcome import Outcome
from benchmarks.harness import Claim, interleave, median_ratio


def measure(data: Path, _: Path, rounds: int, quick: bool) -> Outcome:
    warm_page_cache(data)
    logs: dict[str, list[dict[str, Any]]] = {"monai": [], "hasten": []}
    arms = {arm: partial(in_child, arm, data, "ct", logs[arm]) for arm in logs}
    seconds = interleave(arms, rounds, warmup=0 if quick else 1)
    peaks = {arm: [each["peak_mib"] for each in log][-rounds:] for arm, log in logs.items()}
    results = {f"fill/{arm}_s": values for arm, values in seconds.items()}
    results |= {f"fill/{arm}_peak_mib": values for arm, values in peaks.items()}
    ratio = median_ratio(seconds["monai"], seconds["hasten"])
    memory = median(peaks["hasten"]) / median(peaks["monai"])
    claims = [
        Claim.at_least("filling: MONAI's CacheDataset takes this many times Hasten's seconds", ratio, 3),
        Claim.at_most("filling: Hasten's peak memory over MONAI's", memory, 1),
    ]
    return Outcome(results, claims, {"last": {arm: log[-1] for arm, log in logs.items()}})
