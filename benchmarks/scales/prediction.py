"""What the scaling model predicts against what was measured, misses and all: `python -m benchmarks.scales.prediction`.

The model's form was decided by reasoning, and one part left it after the logs had been fitted: the messages of a weak
epoch, which no set of counts can tell from its fixed part. The fit had given them 0 s, so no prediction of the logs
moved; the ranges did a little. Every miss is predicted over measured, less 1.
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scales import published
from benchmarks.scales.shaped import hosts, missing, run_on
from hasten.study.scale.log_folder import read_logs
from hasten.study.scale.predict.fit import Fitted, Predicted, fit_epochs, nonnegative, predictions, resample
from hasten.study.scale.predict.links import Link, Network
from hasten.study.scale.predict.model import Training
from hasten.study.scale.predict.source import FIXED_SHARE

FITTED_ON = (1, 2, 4)
LAYERS = 8
RATES = {100: 256, 300: 640, 1000: 2048}
"""Mbit/s of a worker to KiB of a bucket: with 0.16 s of backward pass, gradients take about as long as it."""
BACKWARD_S = (0.4, 0.16, 0.04)
"""Communication hidden, about even, and bound by communication."""


def validations(logs: Path, *, rates: Sequence[int] = tuple(RATES), worlds: Sequence[int] = (2, 4)) -> dict[str, Any]:
    """All comparisons, ready for JSON. logs: the folder of the 16 logs; rates: of the shaped links; none skips them."""
    return {
        "logs": scaling_logs(logs),
        "shaped_links": shaped_links(rates, worlds) if rates else {"skipped": "not asked for"},
        "brats": brats(),
        "mlperf": mlperf(),
        "nnunet": nnunet(),
    }


def scaling_logs(folder: Path) -> dict[str, Any]:
    """Fitted on 1, 2 and 4 GPUs, predicted for all; the epoch is the median of all but the first."""
    results: dict[str, Any] = {}
    logs = read_logs(folder).logs
    for strategy in sorted({log.strategy for log in logs}):
        epochs = {log.world: seconds for log in logs if log.strategy == strategy and (seconds := log.epoch_s(None))}
        fitted = fit_epochs({world: epochs[world] for world in FITTED_ON}, mode="weak")
        rows = [
            {**_row(one, one.point.epoch_s, one.epoch_s, epochs[one.point.workers]), "fitted": world in FITTED_ON}
            for world, one in zip(epochs, predictions(fitted, list(epochs), "weak"), strict=True)
        ]
        unseen = [row for row in rows if not row["fitted"]]
        results[strategy] = {
            "rows": rows,
            "worst_unseen_miss": max((abs(row["miss"]) for row in unseen), default=None),
            "unseen_in_range": f"{sum(row['in_range'] for row in unseen)} of {len(unseen)}",
            "notes": fitted.notes,
        }
    return results


def _row(one: Predicted, value: float, around: tuple[float, float], measured: float) -> dict[str, Any]:
    return {
        "workers": one.point.workers,
        "predicted_s": value,
        "range_s": around,
        "measured_s": measured,
        "miss": value / measured - 1,
        "in_range": around[0] <= measured <= around[1],
    }


def shaped_links(rates: Sequence[int], worlds: Sequence[int]) -> dict[str, Any]:
    """DistributedDataParallel over links of each rate: the step from the link's measured latency and rate.

    Compute is sleep, so that ranks that share cores don't slow each other's; the gradients are real. Above some
    hundred Mbit/s a machine of few cores is itself the bottleneck, which the measured link shows.
    """
    if why := missing():
        return {"skipped": why}
    return {f"{rate} Mbit/s": [row for world in worlds for row in _shaped(rate, world)] for rate in rates}


def _shaped(rate: int, world: int) -> list[dict[str, Any]]:
    settings = [
        {"layers": LAYERS, "layer_kib": RATES[rate], "forward_s": 0.05, "backward_s": seconds} for seconds in BACKWARD_S
    ]
    asked = json.dumps({"seconds": 8, "steps": 9, "settings": settings})
    with hosts(1, rate_mbit=rate) as places:
        alone = run_on(places, "benchmarks.scales.paced", asked)["steps"]
    with hosts(world, rate_mbit=rate) as places:
        output = run_on(places, "benchmarks.scales.paced", asked)
    link, rows = Link(**output["link"]), []
    for one, single, steps in zip(settings, alone, output["steps"], strict=True):
        fitted = paced_model(one, single, link)
        point = predictions(fitted, [world], "weak")[0]
        row = _row(point, point.point.step_s, point.step_s, statistics.median(steps))
        compute = fitted.best.training.compute_s
        rows.append({**row, "backward_s": one["backward_s"], "compute_s": compute, "steps_s": steps,
                     "latency_us": 1e6 * link.latency_s, "bytes_per_s": link.bytes_per_s})  # fmt: skip
    return rows


def paced_model(settings: Mapping[str, Any], alone: Sequence[float], link: Link) -> Fitted:
    """The model of `paced.Paced(**settings)`, whose steps took `alone` seconds on one rank, over a measured link."""
    compute, bucket = statistics.median(alone), settings["layer_kib"] * 1024
    training = Training(
        compute_s=compute,
        gradient_bytes=settings["layers"] * bucket,
        bucket_bytes=bucket,
        backward_share=min(1.0, settings["backward_s"] / compute),
        spread=statistics.stdev(alone) / compute,
    )
    return resample(training, Network(between=link), errors={"compute_s": 0.02})


def brats() -> dict[str, Any]:
    """Two of the three cached times fitted, the third predicted; and 8 GPUs from 1 without the cache."""
    rows = []
    times = published.BRATS_S
    for wanted in sorted(times, reverse=True):
        used = [gpus for gpus in times if gpus != wanted]
        # Two points allow two parameters. Communication isn't one: 19 MB a step are nothing on this network.
        columns = np.array([[1 / gpus, 1.0] for gpus in used])
        shares = nonnegative(columns / np.array([[times[gpus]] for gpus in used]), np.ones(len(used)))
        predicted = float(shares @ np.array([1 / wanted, 1.0]))
        rows.append({"fitted_on": used, "workers": wanted, "predicted_s": predicted, "measured_s": times[wanted],
                     "miss": predicted / times[wanted] - 1, "does_not_shrink_s": float(shares[1])})  # fmt: skip
    alone, eight = (published.BRATS_UNCACHED_S[gpus] for gpus in (1, 8))
    # 80 epochs of 388 cases, one a step.
    training = Training(compute_s=alone / (80 * 388), gradient_bytes=4 * published.BRATS_WEIGHTS)
    ideal = predictions(resample(training, published.DGX_A100, errors={}), [8], "weak")[0].point.efficiency
    predicted = alone / (8 * ideal)
    rows.append({"fitted_on": [1], "workers": 8, "predicted_s": predicted, "measured_s": eight,
                 "miss": predicted / eight - 1, "cached": False})  # fmt: skip
    return {"source": published.BRATS_SOURCE, "rows": rows}


def mlperf() -> dict[str, Any]:
    """56 H100 from the row of 8 and the named links alone; 672 from a fit of both, sharing volumes taken as free."""
    eight, many, most = published.MLPERF_H100
    fixed = FIXED_SHARE * eight.step_s
    sample = (eight.step_s - fixed) / (eight.batch / eight.gpus)
    rows = [_submission("8 GPUs, links by name", _strong(sample, fixed, many), many, eight)]
    per_gpu = [one.batch / one.gpus for one in (eight, many)]
    columns = np.array([[samples, 1.0] for samples in per_gpu])
    steps = np.array([one.step_s for one in (eight, many)])
    sample, fixed = (float(value) for value in nonnegative(columns / steps[:, None], np.ones(2)))
    rows.append(_submission("8 and 56 GPUs", _strong(sample, fixed, most), most, eight))
    return {"source": published.MLPERF_SOURCE, "rows": rows, "fitted": {"sample_s": sample, "fixed_s": fixed},
            "note": "672 GPUs: 8 share each volume; the model does not know their exchange of borders"}  # fmt: skip


def _strong(sample_s: float, fixed_s: float, row: published.Submission) -> Predicted:
    training = Training(
        compute_s=row.batch * sample_s + fixed_s, fixed_s=fixed_s, gradient_bytes=published.UNET3D_GRADIENT_BYTES
    )
    errors = {"fixed_s": 0.8, "backward_share": 0.1, "overlap": 0.1}
    return predictions(resample(training, published.DGX_H100, errors=errors), [row.gpus], "strong")[0]


def _submission(fitted_on: str, result: Predicted, row: published.Submission, base: published.Submission) -> dict:
    per_gpu = base.samples_per_s / base.gpus

    def efficiency(step_s: float) -> float:
        return row.batch / step_s / row.gpus / per_gpu

    return {
        **_row(result, result.point.step_s, result.step_s, row.step_s),
        "fitted_on": fitted_on,
        "predicted_efficiency_over_8": efficiency(result.point.step_s),
        "measured_efficiency_over_8": efficiency(row.step_s),
    }


def nnunet() -> dict[str, Any]:
    """8 A100 of one node from the step of one and NVLink by name."""
    rows = []
    for batch, (one, eight) in published.NNUNET_A100.items():
        training = Training(compute_s=batch / one, gradient_bytes=published.NNUNET_GRADIENT_BYTES)
        fitted = resample(training, published.DGX_A100, errors={"compute_s": 0.02, "backward_share": 0.1})
        result = predictions(fitted, [8], "weak")[0]
        rows.append(
            {
                "batch": batch,
                **_row(result, result.point.step_s, result.step_s, 8 * batch / eight),
                "predicted_efficiency": result.point.efficiency,
                "measured_efficiency": eight / (8 * one),
            }
        )
    return {"source": published.NNUNET_SOURCE, "rows": rows}


def lines(result: Mapping[str, Any]) -> list[str]:
    """Every row as "what: workers, predicted, measured, miss"."""
    messages = []
    for name, part in result.items():
        if "skipped" in part:
            messages.append(f"{name}: skipped, {part['skipped']}")
        groups = {name: part["rows"]} if "rows" in part else {f"{name}, {key}": value for key, value in part.items()}
        for group, value in groups.items():
            for row in value["rows"] if isinstance(value, dict) else value if isinstance(value, list) else ():
                seen = " (fitted)" if row.get("fitted") else ""
                messages.append(f"{group}: {row['workers']} workers, predicted {_s(row['predicted_s'])}, measured "
                            f"{_s(row['measured_s'])}, miss {100 * row['miss']:+.1f} %{seen}")  # fmt: skip
    return messages


def _s(seconds: float) -> str:
    return f"{seconds:.4g} s" if seconds >= 1 or not math.isfinite(seconds) else f"{1e3 * seconds:.4g} ms"


if __name__ == "__main__":
    # Ended by a signal, it still takes its hosts down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcome = validations(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("../shared/data/unet_scaling_logs"))
    print("\n".join(lines(outcome)))
    print(json.dumps(outcome))
