"""The road to a tracker: never waited for, never fatal, bounded at its end. A tracker of our own stands in."""

from __future__ import annotations

import logging
import posixpath
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.observe import trackers
from hasten.observe.trackers import Scalar, Status, Tracking, flat_config, scalars_of


class Kept:
    """A tracker that keeps what it is given. hold: what its beginning and each batch wait for."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.ended: list[Status] = []
        self.threads: set[str] = set()
        self.hold = threading.Event()
        self.hold.set()
        self.fail: BaseException | None = None

    def track(self, run: Tracking, batches: Iterable[list[Scalar]]) -> None:
        self.threads.add(threading.current_thread().name)
        self.hold.wait()
        for scalars in batches:
            self.hold.wait()
            if self.fail is not None:
                raise self.fail
            self.steps += [scalar.step for scalar in scalars]
        self.ended.append(run.status)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Kept]:
    """Takes the place of the tracker of a name."""
    monkeypatch.delenv("RANK", raising=False)

    def put(name: str) -> Kept:
        kept = Kept()
        monkeypatch.setitem(trackers.TRACKERS, name, kept.track)
        return kept

    return put


def track(folder: Path, *names: str) -> Tracking:
    return Tracking(names, folder, run_name="r", config={})


def train(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": 0.5}


def test_everything_of_a_tracker_happens_in_a_thread_of_its_own(tmp_path: Path, stand_in: Any) -> None:
    kept = stand_in("mlflow")
    with track(tmp_path, "mlflow", "mlflow") as tracked:
        for step in range(50):
            tracked.log(train(step))
    assert kept.steps == list(range(50)), "in order, and once though it was named twice"
    assert kept.ended == ["finished"]
    assert kept.threads == {"hasten-mlflow"}


def test_nothing_waits_for_one_that_hangs(
    tmp_path: Path, stand_in: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, other = stand_in("wandb"), stand_in("mlflow")
    hanging.hold.clear()
    monkeypatch.setattr(trackers, "CLOSE_S", 0.05)
    with track(tmp_path, "wandb", "mlflow") as tracked:
        for step in range(100):
            tracked.log(train(step))
    # The other one may be short of time too on a slow machine, so that only what was said of this one counts.
    assert [message for message in messages(caplog) if message.startswith("wandb")] == [
        "wandb: did not finish in time; its last records may be missing there"
    ]
    assert not hanging.steps
    hanging.hold.set()
    for thread in threading.enumerate():
        if thread.name.startswith("hasten-"):
            thread.join(30)
    assert other.steps == hanging.steps == list(range(100))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(3), ValueError("")])
def test_one_that_fails_is_told_once_and_the_others_go_on(
    tmp_path: Path, stand_in: Any, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    broken, other = stand_in("wandb"), stand_in("mlflow")
    broken.fail = error
    with track(tmp_path, "wandb", "mlflow") as tracked:
        for step in range(50):
            tracked.log(train(step))
    reason = str(error) or "ValueError"
    assert messages(caplog) == [f"wandb: the run is not tracked there any further ({reason})"]
    assert other.steps == list(range(50))
    assert not broken.ended


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")])
def test_how_a_run_ended_is_passed_on(
    tmp_path: Path, stand_in: Any, error: type[BaseException], status: Status
) -> None:
    kept = stand_in("mlflow")
    with pytest.raises(error), track(tmp_path, "mlflow"):
        raise error
    assert kept.ended == [status]


def test_only_the_first_rank_tracks(tmp_path: Path, stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = stand_in("mlflow")
    monkeypatch.setenv("RANK", "1")
    with track(tmp_path, "mlflow") as tracked:
        tracked.log(train(1))
    assert not kept.threads
    assert not list(tmp_path.iterdir())


def test_a_forked_process_leaves_the_trackers_alone(
    tmp_path: Path, stand_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = stand_in("mlflow")
    with track(tmp_path, "mlflow") as tracked:
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: -1)
            tracked.log(train(1))
            tracked.close()
        tracked.log(train(2))
    assert kept.steps == [2]


def test_nothing_of_a_tracker_is_imported_before_it_is_wanted() -> None:
    command = (
        "import sys, hasten.observe.trackers as t; t.check_trackers(['tensorboard', 'mlflow', 'wandb']); "
        "print({'torch', 'tensorboard', 'mlflow', 'wandb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "set()\n"


def test_a_record_is_named_by_its_kind_and_keys() -> None:
    record = {
        "kind": "validation",
        "step": 7,
        "time_s": 3.0,
        "dice": 0.5,
        "dice_per_class": {"a": 0.25, "b/c": 1},
        "passed": True,
        "note": "x",
        "nothing": None,
        "nan": float("nan"),
        "inf": float("inf"),
    }
    assert scalars_of(record, step=3, time=11.5) == [
        Scalar("validation/dice", 0.5, 7, 11.5),
        Scalar("validation/dice_per_class/a", 0.25, 7, 11.5),
        Scalar("validation/dice_per_class/b_c", 1.0, 7, 11.5),
    ]


KEYS = st.text(max_size=6) | st.sampled_from([".", "..", "/", "../x", "a//b", ""])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
NESTED = st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3))


@given(record=st.dictionaries(KEYS, NESTED, max_size=4))
def test_no_name_leads_anywhere_but_down(record: dict[str, object]) -> None:
    for scalar in scalars_of({"kind": "train"} | record | {"kind": "train"}, step=0, time=0.0):
        assert scalar.name.startswith("train/")
        assert posixpath.normpath(scalar.name) == scalar.name


def test_settings_are_flat() -> None:
    assert flat_config({"a": {"b": (1, 2), "c": None, "d": [[1, 2], [3]]}, "e": True, "f": {}}) == {
        "a.b": "1, 2",
        "a.c": "none",
        "a.d": "(1, 2), (3)",
        "e": True,
    }
    signed = {"data": {"source": "https://me:word@host/brains.zip?signature=abc", "note": "why?"}}
    assert flat_config(signed) == {"data.source": "https://host/brains.zip", "data.note": "why?"}


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
