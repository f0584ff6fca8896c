"""Memory against time of a step whose activations are recomputed to fit a budget."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Claim

SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Budgets, as shares of the bytes that a step keeps when nothing is recomputed."""


def memory_curves(quick: bool) -> tuple[list[Claim], dict[str, list[float]], dict[str, Any]]:
    """By network and budget: MiB predicted and measured (kept, and at the peak), and milliseconds of a step."""
    from benchmarks.engines.steps import NETS, batch, build
    from hasten.config.schema import LossConfig
    from hasten.nets.build import build_loss
    from hasten.nets.recompute.choice import occupied
    from hasten.nets.recompute.measure import memory_curve
    from hasten.nets.recompute.profile import profile_network

    results: dict[str, list[float]] = {}
    claims: list[Claim] = []
    entries: dict[str, Any] = {"budgets": SHARES}
    for name, net in NETS.items():
        network = build(net).train()
        image, label = batch(net)
        whole = occupied(profile_network(network, image), [])[1]
        shares = SHARES[::3] if quick else SHARES
        points = memory_curve(
            network, (image, label), build_loss(LossConfig()), [int(share * whole) for share in shares],
            rounds=1 if quick else 7,
        )  # fmt: skip
        for share, point in zip(shares, points, strict=True):
            at = f"{name}, budget {share:.0%}"
            results[f"{at}/predicted_MiB"] = [point.predicted / 2**20]
            results[f"{at}/kept_MiB"] = [point.kept / 2**20]
            results[f"{at}/peak_MiB"] = [point.peak / 2**20]
            results[f"{at}/step_ms"] = [point.milliseconds]
            entries[at] = str(point.report)
        least, most = min(points, key=lambda point: point.kept), points[0]
        claims.append(
            Claim.at_most(f"{name}: activations at the tightest budget over all", least.kept / most.kept, 1.0)
        )
    return claims, results, entries
