from __future__ import annotations

import json

import pytest
import torch

import hasten
from hasten.observe import env


def test_environment_is_json_and_says_what_it_ran_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    facts = env.environment()
    text = json.dumps(facts)
    assert json.loads(text) == facts
    assert facts["hasten"] == hasten.__version__
    assert facts["torch"]["version"] == torch.__version__
    assert facts["packages"]["monai"]
    assert 1 <= facts["cores_usable"] <= facts["cores_logical"]
    assert facts["ram_bytes"] > 0
    assert facts["variables"]["OMP_NUM_THREADS"] == "2"
    assert "hidden" not in text
    assert facts["time_utc"].endswith("+00:00")
