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


def test_without_torch_and_compiler_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(env.importlib, "import_module", missing)
    monkeypatch.setattr(env.shutil, "which", lambda name: None)
    facts = env.environment()
    assert facts["torch"] is None
    assert facts["gxx"] is None
    assert facts["git"] is None
    assert facts["cpu"]


def test_a_command_that_fails_gives_none() -> None:
    assert env._first_line("git", "no-such-verb") is None
    assert env._first_line("no-such-program-anywhere") is None
