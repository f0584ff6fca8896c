"""Alerts on made-up series: each trouble is told, and what only looks like it is not."""

from __future__ import annotations

import dataclasses
import random

import pytest

from hasten.observe.monitor.alerts import (
    Alert,
    alerts_of,
    alerts_of_ranks,
    pace,
    ram_soon,
    sentences,
    slope,
    straggler,
    training,
)
from hasten.observe.monitor.sample import Sample
from tests.observe.monitor.series import series


def alerts_by_kind(samples: list[Sample], *, live: bool = False) -> dict[str, Alert]:
    result = alerts_of(samples, live=live)
    assert len({(alert.kind, alert.subject) for alert in result}) == len(result)
    return {alert.kind: alert for alert in result}


def noise(t: int) -> random.Random:
    return random.Random(t)


def test_a_sound_run_is_not_told_of() -> None:
    samples = series(
        900,
        gpu=lambda t: {"util": 5.0 if t % 20 < 4 else 95.0, "used": 8000 + noise(t).gauss(0, 200)},
        host=lambda t: {"rss": 2000 + noise(t).gauss(0, 100), "cpu": 100.0},
    )
    assert alerts_by_kind(samples, live=True) == {}
    assert alerts_by_kind([]) == {}
    assert alerts_by_kind(samples[:1], live=True) == {}


def test_an_idle_gpu_is_told_with_its_time() -> None:
    alert = alerts_by_kind(series(600, gpu=lambda t: {"util": 2.0 if 200 <= t <= 320 else 95.0}))["idle_gpu"]
    assert alert.subject == "GPU 0"
    assert alert.since_s == 200
    assert "for 120 s of 598 s" in alert.text
    assert "hasten doctor" in alert.text


@pytest.mark.parametrize("every", [1, 5, 30])
def test_an_idle_gpu_is_told_at_any_period(every: int) -> None:
    assert set(alerts_by_kind(series(900, every=every, gpu=lambda t: {"util": 2.0 if t >= 300 else 95.0}))) == {
        "idle_gpu"
    }


def test_one_gpu_of_two_is_idle() -> None:
    samples = [
        dataclasses.replace(s, gpus=(s.gpus[0], dataclasses.replace(s.gpus[1], util=0.0)))
        for s in series(200, num_gpus=2)
    ]
    (alert,) = alerts_of(samples)
    assert alert.subject == "GPU 1"


def test_a_gpu_may_wait_before_the_first_step_and_for_less_than_a_minute() -> None:
    preparing = [
        dataclasses.replace(sample, step=max(0, int(sample.time) - 300))
        for sample in series(600, gpu=lambda t: {"util": 0.0 if t <= 300 else 95.0})
    ]
    assert alerts_by_kind(preparing) == {}
    assert alerts_by_kind(series(600, gpu=lambda t: {"util": 0.0 if 100 <= t < 145 else 95.0})) == {}
    assert "idle_gpu" in alerts_by_kind(series(600, steps=False, gpu=lambda t: {"util": 0.0 if t <= 300 else 95.0}))


def test_a_resumed_run_may_prepare_again() -> None:
    second = [
        dataclasses.replace(sample, step=400 + max(0, int(sample.time) - 400))
        for sample in series(400, start=200, process=1, gpu=lambda t: {"util": 0.0 if t <= 400 else 95.0})
    ]
    assert alerts_by_kind(series(200) + second) == {}
    assert len(list(training(series(200) + second))) == 199 + 199


def test_figures_that_are_not_known_are_no_trouble() -> None:
    unknown = {"util": None, "used": None, "total": None, "sm_mhz": None, "throttle": None}
    host = {"ram_used": None, "ram_total": None, "rss": None, "cpu": None}
    assert alerts_by_kind(series(900, gpu=lambda t: unknown, host=lambda t: host), live=True) == {}


def test_memory_that_creeps_is_told_and_its_rate() -> None:
    result = alerts_by_kind(
        series(
            1200,
            gpu=lambda t: {"used": 8000 + 0.5 * t + noise(t).gauss(0, 50)},
            host=lambda t: {"rss": 2000 + 1.0 * t + (500 if t % 50 == 0 else 0)},
        )
    )
    assert set(result) == {"gpu_memory_creep", "memory_creep"}
    assert "30." in result["gpu_memory_creep"].text or "29." in result["gpu_memory_creep"].text
    assert "60.0 MiB a minute" in result["memory_creep"].text
    assert result["memory_creep"].subject == "rank 0"


@pytest.mark.parametrize(
    "rss",
    [
        lambda t: 2000 + min(t, 300) * 5,  # a cache that fills and is full
        lambda t: 2000 + (4000 if t > 700 else 0),  # one jump
        lambda t: 2000 + 0.05 * t,  # growth too small to matter
        lambda t: 50_000 + 1.0 * t,  # the same growth, of a process that is large
        lambda t: 6000 - 2 * t,
        lambda t: 2000 + 1000 * (t % 60) / 60,  # up and down
    ],
)
def test_memory_that_settles_is_not_told(rss: object) -> None:
    assert callable(rss)
    assert alerts_by_kind(series(1200, host=lambda t: {"rss": rss(t)})) == {}


def test_throttling_by_heat_is_told_and_a_power_cap_only_with_low_clocks() -> None:
    hot = alerts_by_kind(series(300, gpu=lambda t: {"throttle": ("hw_thermal", "power_cap") if t > 100 else ()}))[
        "throttling"
    ]
    assert "hw_thermal" in hot.text
    assert "power_cap" not in hot.text
    assert hot.since_s == 101
    assert alerts_by_kind(series(300, gpu=lambda t: {"throttle": ("power_cap",), "sm_mhz": 1800.0})) == {}
    capped = series(300, gpu=lambda t: {"throttle": ("power_cap",), "sm_mhz": 1900.0 if t < 50 else 1200.0})
    assert "power_cap" in alerts_by_kind(capped)["throttling"].text


def test_a_host_without_memory_is_told_at_once() -> None:
    alert = alerts_by_kind(series(100, host=lambda t: {"ram_used": 31_000.0 if t > 80 else 8000.0}))["ram_full"]
    assert (alert.subject, alert.since_s) == ("host", 81)
    assert "97 % full" in alert.text


def test_a_host_that_will_be_full_is_told_live_only() -> None:
    samples = series(200, host=lambda t: {"ram_used": 20_000 + 30.0 * t})
    assert set(alerts_by_kind(samples)) == set()
    (alert,) = ram_soon(samples)
    assert "full in 201 s" in alert.text  # (32000 - 25970) / 30 = 201 s
    assert "ram_soon" in alerts_by_kind(samples, live=True)
    assert ram_soon(series(200, host=lambda t: {"ram_used": 2000 + 30.0 * t})) == []
    assert ram_soon(series(200, host=lambda t: {"ram_used": 26_000 + (t % 7) * 100.0})) == []


def test_a_rank_that_lags_is_told() -> None:
    (alert,) = straggler({0: 0.20, 1: 0.21, 2: 0.31, 3: 0.19})
    assert alert.subject == "rank 2"
    assert "310 ms a step and the others 200 ms" in alert.text
    assert [alert.subject for alert in straggler({0: 0.4, 1: 0.2})] == ["rank 0"]
    assert straggler({0: 0.2, 1: 0.22, 2: None}) == []
    assert straggler({0: 0.2}) == straggler({}) == []


def test_ranks_in_lock_step_are_told_apart_by_their_own_work() -> None:
    ranks = {rank: series(60) for rank in range(3)}
    assert alerts_of_ranks(ranks) == []
    worked = {
        rank: [dataclasses.replace(sample, work_s=0.48 if rank == 1 else 0.2) for sample in samples]
        for rank, samples in ranks.items()
    }
    assert [(alert.kind, alert.subject) for alert in alerts_of_ranks(worked)] == [("straggler", "rank 1")]


def test_ranks_are_named_and_the_host_is_told_once() -> None:
    full = {"ram_used": 31_900.0}
    ranks = {rank: series(100, gpu=lambda t: {"util": 0.0}, host=lambda t: full) for rank in range(3)}
    result = alerts_of_ranks(ranks)
    assert [alert.kind for alert in result].count("ram_full") == 1
    idle = [alert.subject for alert in result if alert.kind == "idle_gpu"]
    assert idle == ["GPU 0 (rank 0)", "GPU 0 (rank 1)", "GPU 0 (rank 2)"]
    texts = sentences(result)
    assert len(texts) == 2
    assert texts[0].endswith("; likewise GPU 0 (rank 1), GPU 0 (rank 2).")


def test_the_slope_is_not_moved_by_outliers() -> None:
    points = [(float(t), 3.0 * t + (1e6 if t % 9 == 0 else 0.0)) for t in range(500)]
    assert slope(points) == pytest.approx(3.0, rel=0.1)
    assert slope([]) == slope([(1.0, 5.0)]) == slope([(1.0, 5.0), (1.0, 9.0)]) == 0.0


def test_the_pace_is_a_median_of_what_is_known() -> None:
    assert pace([]) is None
    assert pace(series(3, steps=False)) is None
    assert pace(series(10)) == 0.5
