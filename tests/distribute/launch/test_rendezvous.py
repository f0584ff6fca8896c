"""What a launcher says of its job, and of hosts that don't meet; all on this host, over loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hasten.distribute.launch.exit_status import End
from hasten.distribute.launch.job import Job
from hasten.distribute.launch.rendezvous import Rendezvous, join

OUT = Path("out")


@contextmanager
def listening() -> Iterator[int]:
    """A port on which something else listens."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        yield other.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def node(rank: int, port: int, **fields: Any) -> Job:
    given = {"nproc": 1, "out": OUT, "nnodes": 2, "join_s": 20.0}
    return Job(node_rank=rank, master=f"127.0.0.1:{port}", **(given | fields))


def met(*jobs: Job) -> list[Rendezvous | ValueError]:
    """What each launcher finds, all at once."""

    def one(job: Job) -> Rendezvous | ValueError:
        try:
            return join(job)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nproc": 0}, "--nproc 0: must be 1 or more"),
        ({"nnodes": 0}, "--nnodes 0: must be 1 or more"),
        ({"nnodes": 2, "node_rank": 2, "master": "a:1"}, "--node-rank 2: must be 0 to 1"),
        ({"node_rank": 1}, "--node-rank 1: must be 0 to 0"),
        ({"nnodes": 2}, "give all of them --master HOST:PORT"),
        ({"master": "node-0"}, "--master node-0: must be HOST:PORT"),
        ({"master": "node-0:99999"}, "--master node-0:99999: must be HOST:PORT"),
        ({"max_restarts": -1}, "--max-restarts -1: must be 0 or more"),
        ({"stall_s": 0.0}, "--stall-seconds 0: must be above 0"),
        ({"join_s": -1.0}, "--join-seconds -1: must be above 0"),
        ({"rdzv_id": ""}, "--rdzv-id: is empty"),
    ],
)
def test_jobs_that_are_none(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Job(**({"nproc": 1, "out": OUT} | fields))


def test_more_processes_than_cores_are_no_mistake() -> None:
    assert Job(nproc=1, out=OUT).warning() is None
    warning = Job(nproc=4096, out=OUT).warning() or ""
    assert warning.startswith("--nproc 4096: this host has ")


def test_one_host_needs_no_address() -> None:
    rendezvous = join(Job(nproc=2, out=OUT))
    assert rendezvous.port > 0
    assert len(rendezvous.hosts) == 1
    assert rendezvous.exchange([]) == ([], [])


def test_a_port_that_is_taken() -> None:
    with (
        listening() as port,
        pytest.raises(ValueError, match=rf"port {port} of .* is taken .* port \d+ is free"),
    ):
        join(node(0, port))


def test_a_host_of_no_name() -> None:
    job = Job(nproc=1, out=OUT, nnodes=2, node_rank=1, master="no-such-host.invalid:29500", join_s=1.0)
    with pytest.raises(ValueError, match=r"no-such-host\.invalid:29500: .*no host of that name"):
        join(job)


def test_nobody_at_the_address() -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"cannot be reached .* the launcher of --node-rank 0 runs on"):
        join(node(1, free_port(), join_s=1.0))
    assert time.monotonic() - began < 30


def test_something_else_at_the_address() -> None:
    with (
        listening() as port,
        pytest.raises(ValueError, match=r"no launcher answers .*--node-rank 0"),
    ):
        join(node(1, port, join_s=2.0))


def test_a_node_that_does_not_come() -> None:
    with pytest.raises(ValueError, match="--nnodes 3: node 1, 2 did not come within 1 s"):
        join(node(0, free_port(), nnodes=3, join_s=1.0))


def test_nodes_meet_and_tell_how_their_ranks_ended() -> None:
    port = free_port()
    both = met(node(1, port), node(0, port))
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in both)
    assert len({rendezvous.name for rendezvous in both if isinstance(rendezvous, Rendezvous)}) == 1
    ends = [
        End(rank=rank, host=f"h{rank}", how="gone", exit_code=1, message="", traceback="", log="", time=1.0)
        for rank in (1, 0)
    ]
    with ThreadPoolExecutor(2) as pool:
        output = list(pool.map(lambda pair: pair[0].exchange([pair[1]]), zip(both, ends, strict=True)))
    assert output == [(ends[::-1], []), (ends[::-1], [])]


def test_a_node_that_says_no_more_is_lost() -> None:
    port = free_port()
    _, first = met(node(1, port), node(0, port, join_s=1.5))
    assert isinstance(first, Rendezvous)
    _, lost = first.exchange([])
    assert [name.endswith("(node 1)") for name in lost] == [True]


def test_a_launcher_of_an_earlier_job() -> None:
    """It has waited for its own node 0, or tried the place of a node that is there."""
    port = free_port()
    first, stale = met(node(0, port, join_s=3.0), node(1, port, rdzv_id="earlier"))
    assert isinstance(stale, ValueError)
    assert "job 'hasten' of 2 nodes runs there" in str(stale)
    assert "started for 'earlier' of 2" in str(stale)
    assert isinstance(first, ValueError)
    assert "node 1 did not come" in str(first)


def test_a_number_given_twice() -> None:
    port = free_port()
    result = met(*(node(rank, port, nnodes=3, join_s=3.0) for rank in (0, 1, 1)))
    output = sorted(str(error) for error in result)
    assert [text.startswith("--nnodes 3: node 2 did not come") for text in output] == [True, True, False]
    assert "--node-rank 1: already used by process" in output[2]
    assert "already used by process" in output[2]


def test_a_used_port_of_a_job_that_ended_is_free_again() -> None:
    port = free_port()
    first, second = met(node(0, port), node(1, port))
    assert isinstance(first, Rendezvous)
    del first, second
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in met(node(0, port), node(1, port)))
