from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hasten.checkpoint.file import read_checkpoint
from hasten.training.stop import StopRequest
from tests.processes import Program

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_heard_at_the_next_boundary(number: signal.Signals) -> None:
    with StopRequest() as stop:
        send(number)
        assert stop.agreed() == stop.asked == number
        assert stop.agreed() == number


def test_a_second_ctrl_c_ends_at_once() -> None:
    with StopRequest() as stop:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop.agreed() == signal.SIGINT


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_wish_to_be_queued_again_is_not_lost(order: tuple[int, int]) -> None:
    with StopRequest() as stop:
        for place in order:
            send((signal.SIGTERM, signal.SIGUSR1)[place])
        assert stop.agreed() == signal.SIGUSR1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_forked_worker_ends_as_it_would_have(number: signal.Signals) -> None:
    """A loader ends its workers so; one that only took a note would never end."""
    with StopRequest() as stop:
        child = os.fork()
        if not child:
            try:
                send(number)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == number
        assert stop.agreed() is None


LOOP = """
import json, os, signal, sys, time
from functools import partial
from pathlib import Path
import torch
from torch import distributed
from hasten.checkpoint.file import write_checkpoint
from hasten.checkpoint.saver import Saver
from hasten.training.stop import EXIT_CODES, StopRequest
folder, rank, size, scenarios = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
torch.set_num_threads(1)
if size > 1:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
for number, scenario in enumerate(scenarios):
    asked = None
    with StopRequest(every=scenario["every"], timeout_s=300) as stop, Saver() as saver:
        for step in range(1, 1_000_000):
            time.sleep(0.002 * rank)  # ranks of different speed, which nothing else brings together
            if step == 3 and not scenario["sends"]:
                print("running", flush=True)
            for at, who, name in scenario["sends"]:
                if (at, who) == (step, rank):
                    os.kill(os.getpid(), getattr(signal, name))
            asked = step if asked is None and stop.asked else asked
            signal_agreed = stop.agreed()
            if signal_agreed:
                content = {"step": step, "signal": signal_agreed.name, "asked": asked}
                saver.save(content, partial(write_checkpoint, folder / f"{number}-{rank}.pt"))
                break
if size > 1:
    distributed.destroy_process_group()
sys.exit(EXIT_CODES[signal_agreed])
"""


@contextlib.contextmanager
def started(folder: Path, size: int, scenarios: list[dict[str, Any]]) -> Iterator[list[Program]]:
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    words = (str(size), json.dumps(scenarios))
    ranks = [Program("-c", LOOP, str(folder), str(rank), *words, env=env) for rank in range(size)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def finished(ranks: list[Program]) -> list[int]:
    for rank in ranks:
        output = rank.communicate(timeout=600)[1]
        assert "Traceback" not in output, output
    return [rank.returncode for rank in ranks]


def test_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    """Of three, one is sent a signal, by itself at a step of its own or from outside; the others hear of it."""
    scenarios = [
        {"every": 1, "sends": [[5, 1, "SIGUSR1"]]},
        {"every": 4, "sends": [[6, 2, "SIGTERM"]]},
        {"every": 1, "sends": [[5, 0, "SIGINT"], [5, 2, "SIGUSR1"]]},
        {"every": 3, "sends": [[1, 0, "SIGTERM"], [2, 1, "SIGTERM"], [3, 2, "SIGTERM"]]},
        {"every": 2, "sends": []},
    ]
    names = ["SIGUSR1", "SIGTERM", "SIGUSR1", "SIGTERM", "SIGTERM"]
    with started(tmp_path, 3, scenarios) as ranks:
        # In torch 2.10 Gloo prints first.
        lines = iter(ranks[1].stdout.readline, "")
        assert next(line for line in lines if not line.startswith("[Gloo]")) == "running\n"
        ranks[1].send_signal(signal.SIGTERM)
        assert finished(ranks) == [143, 143, 143]
    for number, (scenario, name) in enumerate(zip(scenarios, names, strict=True)):
        results = [read_checkpoint(tmp_path / f"{number}-{rank}.pt") for rank in range(3)]
        assert len({content["step"] for content in results}) == 1, number
        assert {content["signal"] for content in results} == {name}, number
        if scenario["sends"]:
            assert results[0]["step"] == [6, 12, 6, 6][number], number  # notes at 5, 8, 5, 3; seen `every` later
        asked = min(content["asked"] for content in results if content["asked"] is not None)
        assert asked < results[0]["step"] <= asked + 2 * scenario["every"] - 1, number
