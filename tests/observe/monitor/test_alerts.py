"""Alerts on made-up series: each trouble is told, and what only looks like it is not."""

from __future__ import annotations

import dataclasses
import random

from hasten.observe.monitor.alerts import (
    Alert,
    alerts_of,
    alerts_of_ranks,
    sentences,
    straggler,
)
from hasten.observe.monitor.recording import Sample
from tests.observe.monitor.series import series


def alerts_by_kind(samples: list[Sample]) -> dict[str, Alert]:
    result = alerts_of(samples)
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
    assert alerts_by_kind(samples) == {}
    assert alerts_by_kind([]) == {}
    assert alerts_by_kind(samples[:1]) == {}


def test_an_idle_gpu_is_told_with_its_time() -> None:
    alert = alerts_by_kind(series(600, gpu=lambda t: {"util": 2.0 if 200 <= t <= 320 else 95.0}))["idle_gpu"]
    assert alert.subject == "GPU 0"
    assert "for 120 s of 598 s" in alert.text
    assert "hasten doctor" in alert.text


def test_a_gpu_may_wait_before_the_first_step_and_for_less_than_a_minute() -> None:
    preparing = [
        dataclasses.replace(sample, step=max(0, int(sample.time) - 300))
        for sample in series(600, gpu=lambda t: {"util": 0.0 if t <= 300 else 95.0})
    ]
    assert alerts_by_kind(preparing) == {}
    assert alerts_by_kind(series(600, gpu=lambda t: {"util": 0.0 if 100 <= t < 145 else 95.0})) == {}
    assert "idle_gpu" in alerts_by_kind(series(600, steps=False, gpu=lambda t: {"util": 0.0 if t <= 300 else 95.0}))


def test_throttling_by_heat_is_told_and_a_power_cap_only_with_low_clocks() -> None:
    hot = alerts_by_kind(series(300, gpu=lambda t: {"throttle": ("hw_thermal", "power_cap") if t > 100 else ()}))[
        "throttling"
    ]
    assert "hw_thermal" in hot.text
    assert "power_cap" not in hot.text
    assert alerts_by_kind(series(300, gpu=lambda t: {"throttle": ("power_cap",), "sm_mhz": 1800.0})) == {}
    capped = series(300, gpu=lambda t: {"throttle": ("power_cap",), "sm_mhz": 1900.0 if t < 50 else 1200.0})
    assert "power_cap" in alerts_by_kind(capped)["throttling"].text


def test_a_host_without_memory_is_told_at_once() -> None:
    alert = alerts_by_kind(series(100, host=lambda t: {"ram_used": 31_000.0 if t > 80 else 8000.0}))["ram_full"]
    assert alert.subject == "host"
    assert "97 % full" in alert.text


def test_a_rank_that_lags_is_told() -> None:
    (alert,) = straggler({0: 0.20, 1: 0.21, 2: 0.31, 3: 0.19})
    assert alert.subject == "rank 2"
    assert "310 ms a step and the others 200 ms" in alert.text
    assert [alert.subject for alert in straggler({0: 0.4, 1: 0.2})] == ["rank 0"]
    assert straggler({0: 0.2, 1: 0.22, 2: None}) == []
    assert straggler({0: 0.2}) == straggler({}) == []


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
