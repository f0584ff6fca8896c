"""The rendezvous of each start: a new store, as the old one has the addresses of ranks that died."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from hasten.distribute.launch.meet import Meeting


class Rounds(RendezvousHandler):
    """torch's static rendezvous, with a fresh store each time. Its port is shared through the launchers' store."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting, self.number = meeting, 0
        self._store: TCPStore | None = None
        self._timeout = timedelta(seconds=meeting.job.join_s)

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises RuntimeError if another host does not join."""
        job, key = self.meeting.job, f"round/{self.number}"
        self.number += 1
        first = job.node_rank == 0
        port = 0 if first else int(self.meeting.store.get(key))
        self._store = TCPStore(self.meeting.host, port, None, first, self._timeout, wait_for_workers=False)
        if first:
            self.meeting.store.set(key, str(self._store.port))
        place = RendezvousStoreInfo(self.meeting.host, self._store.port)
        return RendezvousInfo(PrefixStore(job.rdzv_id, self._store), job.node_rank, job.nnodes, place)

    def get_backend(self) -> str:
        return "static"

    def get_run_id(self) -> str:
        return self.meeting.job.rdzv_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True
