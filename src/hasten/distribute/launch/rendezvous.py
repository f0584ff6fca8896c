"""Rendezvous of the launchers of several hosts before that of their ranks, so that errors are early and specific."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.utils.distributed import get_free_port

from hasten.distribute.group import why_unreachable, with_timeout
from hasten.distribute.launch.exit_status import End
from hasten.distribute.launch.job import Job

T = TypeVar("T")
_SETTLE_S = 45.0
"""Longest wait for another host's report on how its ranks ended: torch gives ranks that hang 30 s to end."""
_PARTING_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """The hosts of a job, after all of them have joined."""

    job: Job
    host: str
    port: int
    name: str
    """Name of this launch, the same on all hosts: the time at which it began."""
    hosts: Sequence[str]
    """Host names by node rank."""
    store: Any
    """Store that is kept as long as the job runs: the rendezvous ends with node 0's store."""

    def wait_for_all(self, what: str, seconds: float) -> None:
        """Wait for the launchers of all hosts to come to this point. Raises RuntimeError if one does not in time."""
        self.store.set(f"{what}/{self.job.node_rank}", "1")
        self.store.wait([f"{what}/{node}" for node in range(self.job.nnodes)], timedelta(seconds=seconds))

    def exchange(self, ends: Sequence[End]) -> tuple[list[End], list[str]]:
        """The ends on all hosts, and the hosts that did not report theirs in time. Takes a minute at most."""
        if self.job.nnodes == 1:
            return list(ends), []
        wait_s = min(_SETTLE_S, self.job.join_s)
        payload = json.dumps([asdict(end) for end in ends])
        _call_or_none(lambda: self.store.set(f"end/{self.job.node_rank}", payload), wait_s)
        others = [node for node in range(self.job.nnodes) if node != self.job.node_rank]
        all_ends, lost = list(ends), []
        until = time.monotonic() + wait_s
        for node in others:
            answer = self._answer(f"end/{node}", until)
            if answer is None:
                lost.append(f"{self.hosts[node]} (node {node})")
            else:
                all_ends += [End(**fields) for fields in json.loads(answer)]
        self._part([node for node in others if f"{self.hosts[node]} (node {node})" not in lost])
        return sorted(all_ends, key=lambda end: end.rank), lost

    def _answer(self, key: str, until: float) -> bytes | None:
        remaining_s = max(0.1, until - time.monotonic())

        def ask() -> bytes:
            self.store.wait([key], timedelta(seconds=remaining_s))
            return bytes(self.store.get(key))

        return _call_or_none(ask, remaining_s + 1.0)

    def _part(self, others: Sequence[int]) -> None:
        """Wait for the others on node 0, which hosts the store and leaves last."""
        if self.job.node_rank:
            _call_or_none(lambda: self.store.set(f"read/{self.job.node_rank}", "1"), _PARTING_S)
            return
        until = time.monotonic() + min(_SETTLE_S, self.job.join_s)
        for node in others:
            self._answer(f"read/{node}", until)


def join(job: Job) -> Rendezvous:
    """Wait for the launchers of the other hosts, for at most `job.join_s`.

    Raises ValueError naming the port that is taken, the host that can't be reached, the nodes that did not come, or
    what another job holds.
    """
    until = time.monotonic() + job.join_s
    host, port = job.address()
    if job.node_rank == 0:
        _require_free(port)
    else:
        reason = why_unreachable(host, port, within_s=job.join_s)
        if reason is not None:
            raise ValueError(
                f"--master {host}:{port}: cannot be reached ({reason}); check that the launcher of --node-rank 0 runs "
                f"on {host} and that no firewall lies between"
            )
    server = _store(host, port, until, first=job.node_rank == 0)
    try:
        store = PrefixStore("hasten", server)
        name = _same_job(job, store)
        hosts = _hosts(job, store, until)
    except RuntimeError as error:
        raise ValueError(f"--master {host}:{port}: the launcher of --node-rank 0 does not answer any more") from error
    return Rendezvous(job=job, host=host, port=server.port, name=name, hosts=hosts, store=store)


def _store(host: str, port: int, until: float, *, first: bool) -> TCPStore:
    remaining_s = max(1.0, until - time.monotonic())

    def opened() -> TCPStore:
        return TCPStore(host, port, None, first, timedelta(seconds=remaining_s), wait_for_workers=False)

    # If the server at this address is not a store, torch's store waits forever.
    store = _call_or_none(opened, remaining_s + 1.0)
    if store is None:
        raise ValueError(
            f"--master {host}:{port}: no launcher answers there; check that the one of --node-rank 0 runs on {host}, "
            "and that what listens there is no other program"
        )
    return store


def _require_free(port: int) -> None:
    with socket.socket(socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            return
        except OSError as error:
            reason = "is taken by another program" if error.errno == errno.EADDRINUSE else str(error.strerror)
    raise ValueError(
        f"--master: port {port} of this host {reason}, perhaps an earlier job; port {get_free_port()} is free"
    )


def _same_job(job: Job, store: PrefixStore) -> str:
    """The launch's name, which node 0 gives. Raises ValueError where node 0 runs something else."""
    local = {"id": job.rdzv_id, "nnodes": job.nnodes}
    if job.node_rank == 0:
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        store.set("job", json.dumps(local | {"name": name}))
        return name
    remote = json.loads(store.get("job"))
    name = str(remote.pop("name"))
    if remote != local:
        raise ValueError(
            f"--master {job.master}: job {remote['id']!r} of {remote['nnodes']} nodes runs there, and this launcher "
            f"was started for {job.rdzv_id!r} of {job.nnodes}; end the one that is not wanted, or use another port"
        )
    return name


def _hosts(job: Job, store: PrefixStore, until: float) -> tuple[str, ...]:
    """The host names of all nodes, once they have joined."""
    entry = json.dumps([socket.gethostname(), os.getpid(), uuid.uuid4().hex])
    registered = store.compare_set(f"node/{job.node_rank}", "", entry).decode()
    if registered != entry:
        host, pid, _ = json.loads(registered)
        raise ValueError(
            f"--node-rank {job.node_rank}: already used by process {pid} on {host} (an earlier job, or the number was "
            "given twice); end that process, or number each host differently"
        )
    keys = [f"node/{node}" for node in range(job.nnodes)]
    try:
        store.wait(keys, timedelta(seconds=max(0.1, until - time.monotonic())))
    except RuntimeError:
        missing = [str(node) for node, key in enumerate(keys) if not store.check([key])]
        raise ValueError(
            f"--nnodes {job.nnodes}: node {', '.join(missing)} did not come within {job.join_s:g} s; start the "
            "launcher there too, or give --join-seconds more"
        ) from None
    return tuple(json.loads(store.get(key))[0] for key in keys)


def _call_or_none(call: Callable[[], T], seconds: float) -> T | None:
    """The result of a call; None if it fails or times out: a store may not notice that its host is gone."""
    with suppress(RuntimeError, ValueError, OSError):
        return with_timeout(call, max(0.1, seconds))
    return None
