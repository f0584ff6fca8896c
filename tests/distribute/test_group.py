"""Joining the others: one clear error, in bounded time, where that can't be."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed

from hasten.config.schema import DistributeConfig
from hasten.distribute import group as module
from hasten.distribute.group import RendezvousError, long_timeout_group, process_group, why_unreachable, with_timeout
from hasten.distribute.world import Launcher, World
from tests.cases.servers import free_port
from tests.processes import Program

CONFIG = DistributeConfig(timeout_s=1)
LONG_S = 45
"""What no error may take: these tests wait for a second each, on a machine that may be busy."""


@pytest.fixture
def alien() -> Iterator[int]:
    """The port of a program that takes connections and never answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(5)
        yield taken.getsockname()[1]


def error_of(
    monkeypatch: pytest.MonkeyPatch, rank: int, host: str, port: object, config: DistributeConfig = CONFIG
) -> str:
    """The error of a rank of two that should meet there."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", str(port))
    begin = time.monotonic()
    world = World(rank=rank, size=2, local_rank=rank, local_size=2, host="node7")
    with pytest.raises(RendezvousError) as error, process_group(world, config, torch.device("cpu")):
        pass
    assert time.monotonic() - begin < LONG_S
    assert not distributed.is_initialized()
    return str(error.value)


@pytest.mark.parametrize(
    ("launcher", "remedy"), [("torchrun", "unset RANK WORLD_SIZE"), ("slurm", "unset SLURM_PROCID, or srun --ntasks=1")]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_variables_of_another_job_are_soon_an_error(
    monkeypatch: pytest.MonkeyPatch, launcher: Launcher, remedy: str, rank: int
) -> None:
    monkeypatch.setattr(module, "_SAME_HOST_S", 0.5)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    world = World(rank=rank, size=2, local_rank=rank, local_size=2, launcher=launcher)
    # Supervised ranks, or those of several hosts, would wait for 600 s.
    config = DistributeConfig(timeout_s=600)
    with pytest.raises(RendezvousError, match=remedy), process_group(world, config, torch.device("cpu")):
        pass
    monkeypatch.delenv("MASTER_ADDR")
    elsewhere = World(rank=0, size=2, launcher=launcher)
    with pytest.raises(ValueError, match=remedy), process_group(elsewhere, config, torch.device("cpu")):
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_for_another_host_says_how_to_run_as_one_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    assert module._SILENT_S <= 25
    monkeypatch.setattr(module, "_SILENT_S", 0.2)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.2")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    world = World(rank=rank, size=2, launcher="torchrun")
    with pytest.raises(RendezvousError), process_group(world, CONFIG, torch.device("cpu")):
        pass
    assert [record.levelname for record in caplog.records if "unset RANK WORLD_SIZE" in record.message] == ["WARNING"]


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    message = error_of(monkeypatch, 1, "127.0.0.1", port)
    for part in ("rank 1 of 2 on node7", f"127.0.0.1:{port}", "nobody listens there", "MASTER_ADDR", "firewall"):
        assert part in message
    assert "\n" not in message


def test_no_host_has_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no host of that name" in error_of(monkeypatch, 1, "no-such-host.invalid", 29500)


@pytest.mark.parametrize(
    ("wrong", "waited"),
    [
        (ConnectionRefusedError(), 600),
        (TimeoutError(), 600),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), 30),
        (socket.gaierror(-2, "Name or service not known"), 30),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_reached_is_not_waited_for_as_long_as_what_may_come(
    monkeypatch: pytest.MonkeyPatch, wrong: OSError, waited: float
) -> None:
    now = [0.0]

    def refused(*_: Any, **__: Any) -> None:
        raise wrong

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(module.socket, "create_connection", refused)
    assert why_unreachable("a", 1, within_s=600)
    assert now[0] == pytest.approx(waited, abs=1)


def test_the_port_of_rank_0_is_taken(monkeypatch: pytest.MonkeyPatch, alien: int) -> None:
    message = error_of(monkeypatch, 0, "127.0.0.1", alien, DistributeConfig())
    assert "the port is taken by another program" in message


def test_another_program_answers_there(alien: int) -> None:
    """In a process of its own: the call that hangs must not keep it from ending, nor end it by a crash."""
    code = (
        "import torch\n"
        "from hasten.config.schema import DistributeConfig\n"
        "from hasten.distribute.group import RendezvousError, process_group\n"
        "from hasten.distribute.world import detect_world\n"
        "try:\n"
        "    with process_group(detect_world(), DistributeConfig(timeout_s=1), torch.device('cpu')): pass\n"
        "except RendezvousError as error:\n"
        "    print(error)\n"
        "    raise SystemExit(2)\n"
    )
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(alien)}
    env = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")} | place
    process = Program("-c", code, env=env)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 2, errors
    assert "no answer within" in output
    assert errors == ""


def test_the_others_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "clients joined" in error_of(monkeypatch, 0, "127.0.0.1", free_port())


@pytest.mark.parametrize("port", ["http", "0", "70000", ""])
def test_a_port_is_a_number(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    assert f"MASTER_PORT={port}: " in error_of(monkeypatch, 0, "127.0.0.1", port)


def test_several_hosts_need_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with (
        pytest.raises(ValueError, match="MASTER_ADDR, MASTER_PORT: not set, so rank 1 of 4 on b"),
        process_group(World(rank=1, size=4, local_size=2, host="b"), CONFIG, torch.device("cpu")),
    ):
        pass


def test_one_process_joins_nothing() -> None:
    with process_group(World(), DistributeConfig(), torch.device("cpu")), long_timeout_group() as group:
        assert not distributed.is_initialized()
        assert group is None


def test_a_group_that_was_joined_before_stays_and_is_left_by_who_joined_it(pair: list[Any]) -> None:
    for rank in pair:
        assert rank["still"]
        assert rank["left"]


MEET = """import torch
from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.world import detect_world
with process_group(detect_world(), DistributeConfig(timeout_s=15), torch.device("cpu")):
    torch.distributed.all_reduce(torch.ones(1))
"""


def test_hosts_meet_that_count_their_starts_differently_and_no_signal_to_end_an_earlier_start_is_left() -> None:
    """As after a failure under torchrun, whose agents count only those of their own host, by a store that stays."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("exception_dump", "0001")  # as a rank writes whose collective failed on a GPU
    job = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    ranks = [
        Program("-c", MEET, env={**os.environ, **job, "RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(rank)})
        for rank in range(2)
    ]
    ends = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    assert not store.check(["exception_dump"])


def test_what_takes_too_long_is_left_behind() -> None:
    assert with_timeout(lambda: 3, 60) == 3
    with pytest.raises(KeyError):
        with_timeout(lambda: {}["a"], 60)
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        with_timeout(lambda: time.sleep(5), 0.05)
