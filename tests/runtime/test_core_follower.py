from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from hasten.runtime import core_follower
from hasten.runtime.core_follower import CoreFollower, cores_followed, follow_cores, keep_threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unchosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 cores on which nobody chose the number of threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(core_follower, "allowed_cpus", lambda: set(range(8)))
    monkeypatch.setattr(core_follower, "usable_cores", lambda: 8)
    monkeypatch.setattr(core_follower.psutil, "cpu_count", lambda logical: 8)
    torch.set_num_threads(8)


class Machine:
    """Of `cores`; each look is a second after the last one, and each reading finds the next of `others`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int, others: Sequence[float], *, least: int = 0) -> None:
        monkeypatch.setattr(core_follower, "allowed_cpus", lambda: set(range(cores)))
        self.readings, self.now, self.slept = list(others), 0.0, 0.0
        self.follower = CoreFollower(
            least or -(-cores // 2),
            cores,
            self,  # type: ignore[arg-type]
            clock=self.clock,
            sleep=self.sleep,
        )

    def clock(self) -> float:
        return self.now

    def others(self) -> float:
        return self.readings.pop(0)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def followed(self) -> list[int]:
        """The threads after each look."""
        counts = []
        while self.readings:
            self.now += 1.0
            self.follower.look()
            counts.append(torch.get_num_threads())
        return counts


@pytest.mark.parametrize(
    ("cores", "others", "expected"),
    [
        (2, [0.0, 0.1, 0.0], [2, 2, 2]),
        (2, [0.7, 1.0, 1.0], [1, 1, 1]),  # busy from the start: the first reading covers seconds
        (2, [0.0, 0.9, 0.9, 1.0], [2, 2, 1, 1]),  # later, two in a row
        (2, [0.0, 0.9, 0.0, 0.9, 0.0], [2, 2, 2, 2, 2]),  # bursts
        (2, [1.0, 1.0, 0.0, 0.1], [1, 1, 1, 2]),  # others have ended
        (2, [0.5, 0.5, 0.5], [2, 2, 2]),
        (2, [1.0, 0.5, 0.5, 0.5], [1, 1, 1, 1]),  # neither direction in between
        (8, [3.0, 3.0, 1.9, 1.9], [5, 5, 5, 6]),
        (8, [7.5, 7.5, 7.9], [4, 4, 4]),  # at least half
        (1, [1.0, 1.0], [1, 1]),
    ],
)
def test_threads_follow_the_cores_that_others_leave(
    monkeypatch: pytest.MonkeyPatch, cores: int, others: list[float], expected: list[int]
) -> None:
    torch.set_num_threads(cores)
    assert Machine(monkeypatch, cores, others).followed() == expected


@pytest.mark.parametrize(("others", "times"), [(0.0, 1.0), (1.0, 1.0), (2.0, 1.5), (3.0, 2.0)])
def test_what_one_thread_takes_beside_others(monkeypatch: pytest.MonkeyPatch, others: float, times: float) -> None:
    machine = Machine(monkeypatch, 2, [others])
    machine.now += 1
    machine.follower.look()
    assert machine.follower.slowed == times
    assert core_follower.slowed() == 1.0  # of no follower


def test_before_a_measurement_the_load_of_that_moment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    # A compiler used a core while the cases were prepared: a reading of that time, and a new one.
    torch.set_num_threads(2)
    machine = Machine(monkeypatch, 2, [1.0, 0.0, 1.0, 1.0])
    machine.now += 1.0
    machine.follower.look(anew=True)
    assert torch.get_num_threads() == 2
    assert machine.slept > 0
    machine.now += 1.0
    machine.follower.look(anew=True)
    assert torch.get_num_threads() == 1


def following(device: torch.device = CPU) -> bool:
    with cores_followed(device):
        follower = core_follower._FOLLOWER.get()
        return follower is not None and follower.least < follower.most


@pytest.mark.usefixtures("unchosen")
def test_a_number_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert following()
    assert not following(torch.device("cuda"))
    torch.set_num_threads(3)
    assert not following()
    torch.set_num_threads(8)
    torch.use_deterministic_algorithms(True)
    try:
        assert not following()
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert not following()


@pytest.mark.usefixtures("unchosen")
def test_a_quota_counts_from_the_start_and_the_number_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_follower, "usable_cores", lambda: 2)
    with cores_followed(CPU):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 8
    with cores_followed(CPU):
        keep_threads()
        assert core_follower._FOLLOWER.get() is None
    follow_cores()  # outside of a run nothing is followed
    assert torch.get_num_threads() == 8
