from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hasten.augment import make_program
from tests.augment.stores import random_store, segment_of


@pytest.mark.parametrize("error", [RuntimeError("no ptxas\nmore"), ValueError()])
def test_what_the_host_compiled_does_not_make_a_failing_device_compiled(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that is begun on the host and finished on a device is compiled in two parts."""

    def fail(*_: Any) -> Any:
        raise error

    eager = segment_of(random_store([(6, 6, 6)]), (4, 4, 4), noise_prob=1.0)
    half = replace(eager, compiled=True, why="compiled in 2.0 s", compile_seconds=2.0)
    monkeypatch.setattr(make_program.Segment, "__call__", fail)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    result = make_program._compiled_on_gpu(half)
    monkeypatch.undo()
    assert not result.compiled
    assert result.why == f"torch.compile failed: {'no ptxas' if str(error) else 'ValueError'}"
    assert result.compile_seconds >= 2.0
    assert len(caplog.records) == 1
    assert torch.equal(result(0)["image"], eager(0)["image"])
