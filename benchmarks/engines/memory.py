"""Memory against time of a step whose activations are recomputed to fit a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.harness import Claim
from benchmarks.host_bytes import HostBytes

SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Budgets, as shares of the bytes that a step keeps when nothing is recomputed."""


class Point(NamedTuple):
    """A step within one budget."""

    predicted: int
    """Predicted peak bytes of activations."""
    kept: int
    """Bytes measured between the forward and the backward pass: activations, output and loss."""
    peak: int
    """Measured peak bytes: these, the gradients, and intermediate results."""
    milliseconds: float
    """Median of a forward and backward pass."""
    report: str


def curve(network: Any, image: Any, loss_of: Callable[[Any], Any], shares: Sequence[float], rounds: int) -> list[Point]:
    """A step on a CPU within shares of the bytes that it holds otherwise; the budgets take turns."""
    from hasten.nets.recompute import recompute, recompute_modules, undo
    from hasten.runtime.device import seconds_of

    whole = recompute(network, image, 2**60).before
    reports = [recompute(network, image, int(share * whole)) for share in shares]
    measured: list[tuple[int, int]] = []
    times: list[list[float]] = [[] for _ in reports]
    for number in range(rounds + 1):
        for place, report in enumerate(reports):
            undo(network)
            recompute_modules(network, report.modules, draws=report.draws)
            if number:
                times[place].append(1e3 * seconds_of(lambda: loss_of(network(image)).backward(), image.device))
            else:
                with HostBytes() as counted:
                    loss = loss_of(network(image))
                    kept = counted.live
                    loss.backward()
                    del loss
                measured.append((kept, counted.peak))
            network.zero_grad(set_to_none=True)
    return [
        Point(report.predicted, kept, peak, median(spent), str(report))
        for report, (kept, peak), spent in zip(reports, measured, times, strict=True)
    ]


def memory_curves(quick: bool) -> tuple[list[Claim], dict[str, list[float]], dict[str, Any]]:
    """By network and budget: MiB predicted and measured (kept, and at the peak), and milliseconds of a step."""
    from benchmarks.engines.steps import NETS, batch, build
    from hasten.config.schema import LossConfig
    from hasten.nets.build import build_loss

    results: dict[str, list[float]] = {}
    claims: list[Claim] = []
    entries: dict[str, Any] = {"budgets": SHARES}
    shares = SHARES[::3] if quick else SHARES
    loss = build_loss(LossConfig())
    for name, net in NETS.items():
        image, label = batch(net)
        points = curve(
            build(net).train(), image, lambda scores, label=label: loss(scores, label), shares, 1 if quick else 7
        )
        for share, point in zip(shares, points, strict=True):
            at = f"{name}, budget {share:.0%}"
            results[f"{at}/predicted_MiB"] = [point.predicted / 2**20]
            results[f"{at}/kept_MiB"] = [point.kept / 2**20]
            results[f"{at}/peak_MiB"] = [point.peak / 2**20]
            results[f"{at}/step_ms"] = [point.milliseconds]
            entries[at] = point.report
        least, most = min(points, key=lambda point: point.kept), points[0]
        claims.append(
            Claim.at_most(f"{name}: activations at the tightest budget over all", least.kept / most.kept, 1.0)
        )
    return claims, results, entries
