"""Ranges: seen by torch's profiler and by NVTX, nothing where nobody looks, and objects stay what they were."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from monai.losses import DiceLoss
from monai.transforms import RandFlipd
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Dataset

from hasten.observe import ranges
from hasten.observe.ranges import Range, nvtx_wanted, ranges_on


def seen(call: Callable[[], object]) -> dict[str, int]:
    """How often each name is recorded."""
    with profile(activities=[ProfilerActivity.CPU]) as result:
        call()
    return {event.key: event.count for event in result.key_averages()}


class Double:
    def __call__(self, value: int) -> int:
        return 2 * value


class Cases(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 3


class Worker:
    @Range("worked")
    def work(self, value: int) -> int:
        """Adds one."""
        return value + 1

    @Range()
    def named_by_itself(self) -> None:
        pass


def test_a_range_is_a_context() -> None:
    def nested() -> None:
        with Range("outer"), Range("inner"):
            torch.ones(3).sum()

    result = seen(nested)
    assert result["outer"] == result["inner"] == 1
    assert not ranges_on()


def test_functions_and_methods_are_decorated() -> None:
    assert Worker().work(1) == 2
    assert Worker.work.__doc__ == "Adds one."
    result = seen(lambda: (Worker().work(1), Worker().named_by_itself()))
    assert result["worked"] == 1
    assert result["Worker.named_by_itself"] == 1
    assert seen(lambda: Range()(functools.partial(Worker().work, 1))())["Worker.work"] == 1


def test_nothing_is_done_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Range, name: str) -> Any:
        raise AssertionError(f"{name} is recorded")

    monkeypatch.setattr(Range, "_begin", never)
    monkeypatch.setattr(ranges, "NVTX", False)
    with Range("quiet"):
        assert Range("quiet")(Double())(2) == 4
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(AssertionError, match="loud is recorded"):
        Range("loud").__enter__()


def test_a_range_ends_with_an_error() -> None:
    @Range("failing")
    def fails() -> None:
        raise KeyError("no")

    def run() -> None:
        for _ in range(2):
            with pytest.raises(KeyError):
                fails()
        with pytest.raises(KeyError), Range("context"):
            fails()
        with Range("after"):
            pass

    with profile(activities=[ProfilerActivity.CPU]) as result:
        run()
    after = next(event for event in result.events() if event.name == "after")
    assert after.cpu_parent is None


@pytest.mark.parametrize(
    ("thing", "use", "name"),
    [
        (Double(), lambda thing: thing(1), "Double"),
        (RandFlipd(["image"], prob=1.0), lambda thing: thing({"image": torch.ones(1, 2, 2)}), "RandFlipd"),
        (nn.Linear(2, 2), lambda thing: thing(torch.ones(1, 2)), "Linear"),
        (DiceLoss(), lambda thing: thing(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)), "DiceLoss"),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), lambda thing: thing.step(), "SGD"),
        (Cases(), lambda thing: thing[0], "Cases"),
    ],
    ids=["transform", "monai", "module", "loss", "optimizer", "data set"],
)
def test_objects_are_marked_and_stay_what_they_are(thing: Any, use: Callable[[Any], object], name: str) -> None:
    kind = type(thing)
    marked = Range()(thing)
    assert marked is thing
    assert isinstance(marked, kind)
    assert (type(marked).__name__, type(marked).__module__, type(marked).__qualname__) == (
        kind.__name__,
        kind.__module__,
        kind.__qualname__,
    )
    assert seen(lambda: use(marked))[name] == 1
    twin = copy.deepcopy(marked)
    assert isinstance(twin, kind)
    assert seen(lambda: use(twin))[name] == 1


def test_a_marked_module_compiles_into_one_graph() -> None:
    net = Range("net")(nn.Linear(2, 2))

    def called(value: torch.Tensor) -> torch.Tensor:
        with Range("part"):
            return 2 * net(value)

    value = torch.ones(1, 2)
    assert torch.equal(torch.compile(called, backend="eager", fullgraph=True)(value), called(value))


def test_what_can_not_be_marked_is_said() -> None:
    with pytest.raises(ValueError, match=r"a object has none of forward, step"):
        Range()(object())
    with pytest.raises(ValueError, match="Double is a class"):
        Range()(Double)
    with pytest.raises(ValueError, match="a list can't be marked"):
        Range()([1])


def test_nvtx_is_told_in_a_process_that_nsight_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not nvtx_wanted({"HASTEN_NVTX": "0"})
    assert nvtx_wanted({"HASTEN_NVTX": "1"})
    assert nvtx_wanted({"NSYS_PROFILING_SESSION_ID": "17"})
    assert nvtx_wanted({"NVTX_INJECTION64_PATH": "/lib.so"})
    messages: list[str] = []
    fake = SimpleNamespace(rangePushA=messages.append, rangePop=lambda: messages.append("end"))
    monkeypatch.setattr(torch._C, "_nvtx", fake, raising=False)
    monkeypatch.setattr(ranges, "NVTX", True)
    with Range("step"):
        Range("flip")(Double())(1)
    assert messages == ["step", "flip", "end", "end"]
    monkeypatch.setattr(torch._C, "_nvtx", None, raising=False)  # a build without CUDA
    with Range("step"):
        pass


def test_it_starts_without_torch() -> None:
    script = (
        "import sys; from hasten.observe.ranges import Range\n"
        "with Range('a'): pass\n"
        "assert 'torch' not in sys.modules and 'monai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
