"""Horovod as a strategy: what travels, who starts it, and what is said where it is missing.

That it trains as one process does is shown by the contract of all strategies (test_contract.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.config.schema import DistributeConfig, RunConfig, TrainConfig
from hasten.distribute.horovod import Horovod, load
from hasten.distribute.world import World
from tests.distribute.ranks import run_ranks

needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not built here: make horovod"
)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks("tests.distribute.horovod_rank", 2)


@needs_horovod
def test_each_gradient_is_sent_once_a_step_whatever_the_pieces(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for case in ("once", "twice"):
            assert rank[case]["sent"] == rank[case]["trained"] > 0
            assert rank[case]["types"] == ["torch.float32"]
            assert rank[case]["difference"] < 1e-6


@needs_horovod
def test_gradients_travel_as_fp16_where_that_is_set(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["short"]["types"] == ["torch.float16"]
        assert 0 < rank["short"]["difference"] < 1e-3


@needs_horovod
@pytest.mark.parametrize("kind", ["flat", "turned", "bf16"])
def test_a_gradient_is_averaged_as_it_lies_in_memory(ranks: list[dict[str, Any]], kind: str) -> None:
    """Contiguous, channels-last, and bfloat16, which Horovod refuses: it travels as float32."""
    for rank in ranks:
        assert rank[kind] == {"types": ["torch.float32"], "gradient": True, "weight": True}


@needs_horovod
def test_two_launchers_at_once_are_told(ranks: list[dict[str, Any]]) -> None:
    assert "Horovod has rank 0 of 2" in ranks[0]["swapped"]
    assert "launcher (none) reports rank 1 of 2" in ranks[0]["swapped"]


@needs_horovod
@pytest.mark.slow
def test_horovodrun_starts_it_and_the_process_group_too() -> None:
    runner = Path(sys.executable).with_name("horovodrun")
    if not runner.is_file():
        pytest.skip(f"{runner} is missing")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [
        runner,
        "-np",
        "2",
        "-H",
        "localhost:2",
        sys.executable,
        "-m",
        "tests.distribute.horovod_rank",
        "launched",
    ]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=600, env=environment, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    for rank in (0, 1):
        assert f"launched horovod {rank}/2 3.0 3.0" in done.stdout, done.stdout + done.stderr


def test_missing_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"horovod.torch .*\(No module named.*`make horovod`"):
        load()


def test_a_cuda_graph_is_refused() -> None:
    strategy = Horovod.__new__(Horovod)
    (mistake,) = strategy.mistakes(RunConfig(train=TrainConfig(capture=True)))
    assert mistake.startswith("train.capture: ")
    assert strategy.mistakes(RunConfig()) == []


@needs_horovod
def test_ranks_that_have_joined_no_group_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    with pytest.raises(ValueError, match=r"rank 1 of 2 .* has joined no process group"):
        Horovod(World(rank=1, size=2), DistributeConfig(strategy="horovod"))
