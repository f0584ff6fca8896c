"""Where Triton is used: never on a host, and where it does not work torch's operations are used instead."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from hasten.kernels import use


def test_nothing_runs_on_a_host() -> None:
    assert not use.triton_runs(torch.zeros(3))


def test_a_probe_that_fails_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def launch(device: torch.device) -> None:
        raise RuntimeError("no C compiler\nand more")

    monkeypatch.setitem(sys.modules, "hasten.kernels.probe", SimpleNamespace(launch=launch))
    monkeypatch.setattr(use.importlib.util, "find_spec", lambda name: object())
    use._works_on.cache_clear()
    on_card = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    try:
        with caplog.at_level(logging.WARNING):
            assert not use.triton_runs(on_card)  # type: ignore[arg-type]
            assert not use.triton_runs(on_card)  # type: ignore[arg-type]
    finally:
        use._works_on.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "Triton does not work on cuda:0 (no C compiler); torch's own operations are used"
    ]


def test_without_triton_nothing_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(use.importlib.util, "find_spec", lambda name: None)
    use._works_on.cache_clear()
    try:
        assert not use.triton_runs(SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0)))  # type: ignore[arg-type]
    finally:
        use._works_on.cache_clear()
    assert not caplog.records


def test_one_switch_turns_all_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "_works_on", lambda device: True)
    device = torch.device("cuda", 0)
    for setting in (False, True, None):
        with use.triton_as(setting):
            assert use.triton_works(device) is (setting is not False)
        assert use.triton_works(device)


def test_a_compiler_sees_torchs_operations() -> None:
    """`triton_runs` is a constant to it, not a break of the graph."""
    compiled = torch.compile(lambda x: x + 1 if use.triton_runs(x) else x - 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), -torch.ones(2))
