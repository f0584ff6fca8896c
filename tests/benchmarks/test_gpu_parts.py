"""The parts at toy sizes on a CPU; whole trainings are faked here, and run by the slow test of `test_gpu`."""

from __future__ import annotations

from typing import Any

from benchmarks.gpus import atrium, gate, target

# Whole trainings


def run_of(times: dict[float, float], *, stopped: str = "target", total: float = 50.0) -> dict[str, Any]:
    """An arm's result: seconds by the Dice of each validation."""
    curve = [
        {"seconds": seconds, "dice": dice, "iou": dice, "dice_with_background": dice, "epoch": 1.0}
        for dice, seconds in times.items()
    ]
    return {
        "curve": curve, "best": max(times, default=None), "stopped": stopped, "seconds": {"total": total},
        "seconds_per_epoch": [1.0], "settings": {"metric": "dice", "max_seconds": 90.0},
    }  # fmt: skip


def test_the_aim_is_of_medians_over_the_seeds() -> None:
    ours = [run_of({0.5: 5.0, 0.95: seconds}) for seconds in (9.0, 10.0, 30.0)]
    theirs = [run_of({0.94: seconds}) for seconds in (40.0, 50.0, 60.0)]
    result = target.claim({"hasten": ours, "algorithms": theirs}, 0.94)
    assert (result.value, result.holds) == (5.0, True)


def test_a_peer_that_was_stopped_gives_a_bound_and_ours_none() -> None:
    stopped = [run_of({0.5: 80.0}, stopped="max_seconds")]
    ours = [run_of({0.94: 10.0})]
    bound = target.claim({"hasten": ours, "algorithms": stopped}, 0.94)
    assert bound.value == 9.0
    assert "at least" in bound.name
    missed = target.claim({"hasten": stopped, "algorithms": ours}, 0.94)
    assert missed.value is None
    assert not missed.holds
    assert target.claim({"hasten": ours, "algorithms": []}, 0.94).value is None


def test_the_gate_is_passed_only_if_every_run_passes() -> None:
    theirs = [run_of({0.96: 40.0}), run_of({0.96: 60.0})]
    passed = gate.claims({"hasten": [run_of({0.96: 20.0}), run_of({0.97: 30.0})], "monai": theirs}, 0.95)
    assert [claim.value for claim in passed] == [30.0, 2.0]
    failed = gate.claims({"hasten": [run_of({0.96: 20.0}), run_of({0.9: 30.0})], "monai": theirs}, 0.95)
    assert not any(claim.holds for claim in failed)


def test_the_left_atrium_is_timed_cold_and_against_all_published_iterations() -> None:
    peer = run_of({0.5: 90.0}) | {"step_s": [0.1, 0.2, 0.1]}
    reached = atrium.claims({"hasten cold": run_of({0.8: 20.0, 0.91: 50.0}), "vnet": peer}, 0.905)
    assert [claim.value for claim in reached] == [50.0, 12.0]
    missed = atrium.claims({"hasten cold": run_of({0.9: 50.0}), "vnet": peer}, 0.905)
    assert [claim.value for claim in missed] == [None, None]
