"""What a launcher says of its job, and of hosts that don't meet; all on this host, over loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.distribute.launch.job import Job, Rendezvous

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
            return Rendezvous(job)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nnodes": 2, "node_rank": 2, "master": "a:1"}, "--node-rank 2: must be below --nnodes 2"),
        ({"nnodes": 2}, "give all of them --master HOST:PORT"),
        ({"master": "node-0"}, "--master node-0: must be HOST:PORT"),
        ({"master": "node-0:99999"}, "--master node-0:99999: must be HOST:PORT"),
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
    rendezvous = Rendezvous(Job(nproc=2, out=OUT))
    assert rendezvous.store.port > 0


def test_a_port_that_is_taken_and_what_is_no_launcher() -> None:
    with listening() as port:
        for rank in (0, 1):
            with pytest.raises(ValueError, match=r"can't meet there .*--node-rank 0"):
                Rendezvous(node(rank, port, join_s=2.0))


@pytest.mark.parametrize(
    ("master", "message"), [("no-such-host.invalid:29500", "no host of that name"), (None, "nobody listens there")]
)
def test_nobody_at_the_address(master: str | None, message: str) -> None:
    job = replace(node(1, free_port(), join_s=1.0), **({} if master is None else {"master": master}))
    with pytest.raises(ValueError, match=f"cannot be reached .*{message}"):
        Rendezvous(job)


def test_a_node_that_does_not_come() -> None:
    with pytest.raises(ValueError, match="--nnodes 3: node 1, 2 did not come within 1 s"):
        Rendezvous(node(0, free_port(), nnodes=3, join_s=1.0))


def test_a_number_given_twice() -> None:
    port = free_port()
    told = sorted(str(error) for error in met(*(node(rank, port, nnodes=3, join_s=3.0) for rank in (0, 1, 1))))
    assert [text.startswith("--nnodes 3: node 2 did not come") for text in told] == [True, True, False]
    assert told[2].startswith("--node-rank 1: given to two launchers")


def test_nodes_meet_and_meet_again_at_a_used_port() -> None:
    port = free_port()
    for _ in range(2):
        both = [each for each in met(node(1, port), node(0, port)) if isinstance(each, Rendezvous)]
        assert len(both) == 2
        assert both[0].name == both[1].name
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda each: each.wait_for_all("joined", 20.0), both))
        assert {each.store.port for each in both} == {port}
        del both
