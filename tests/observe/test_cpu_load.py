"""Cores used by others: a program that spins is seen, and what this process does itself is not."""

from __future__ import annotations

import time
from collections import namedtuple

import pytest

from hasten.observe import cpu_load
from hasten.observe.cpu_load import LoadMeter

Times = namedtuple("Times", "user system idle iowait steal guest guest_nice")


@pytest.fixture
def machine(monkeypatch):
    """A machine whose clocks a test sets, with two cores that this process may use and one that it may not."""

    class Machine:
        wall, own = 0.0, 0.0
        times = Times(0, 0, 0, 0, 0, 0, 0)

        def of_each(self):
            half = Times(*(value / 2 for value in self.times))
            return [half, Times(self.wall, 0, 0, 0, 0, 0, 0), half]

        def go(self, wall, own, **spent):
            self.wall, self.own = self.wall + wall, self.own + own
            self.times = Times(*(old + spent.get(name, 0.0) for name, old in self.times._asdict().items()))

    made = Machine()
    monkeypatch.setattr(cpu_load, "_own_cpu", lambda: made.own)
    monkeypatch.setattr(time, "perf_counter", lambda: made.wall)
    monkeypatch.setattr(cpu_load.psutil, "cpu_times", lambda percpu: made.of_each())
    monkeypatch.setattr(cpu_load, "allowed_cpus", lambda: {0, 2})
    return made


def test_what_this_process_uses_is_not_counted(machine):
    meter = LoadMeter()
    machine.go(10, own=15, user=15, idle=5)
    assert meter.others() == 0.0


def test_others_and_stolen_time_are_counted_since_the_last_mark(machine):
    meter = LoadMeter()
    machine.go(10, own=0, user=10, idle=10)
    assert meter.others() == pytest.approx(1.0)
    machine.go(10, own=0, steal=5, idle=15)
    assert meter.others() == pytest.approx(0.5)
    machine.go(10, own=0, idle=12, iowait=8)
    assert meter.others() == 0.0
