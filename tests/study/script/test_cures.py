"""Cures put into torch from outside: what the script then gets."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hasten.study.script.launch import INJECT

DATA = TensorDataset(torch.arange(6))


@pytest.fixture
def apply(monkeypatch):
    """`cures.apply`, whose patches are undone afterwards."""
    for owner, name in ((DataLoader, "__init__"), (nn.Module, "__call__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.syspath_prepend(str(INJECT))
    return importlib.import_module("hasten_probe.cures").apply


def test_workers_reach_map_style_loaders_however_they_were_called(apply):
    from monai.data import DataLoader as MonaiLoader

    apply("workers=2")
    loader = DataLoader(DATA, 2, False)
    assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (2, True, 2)
    given = DataLoader(DATA, batch_size=3, num_workers=0, drop_last=True)
    assert (given.num_workers, given.drop_last) == (2, True)
    assert MonaiLoader(DATA, batch_size=2, num_workers=0).num_workers == 2
    assert [len(batch[0]) for batch in loader] == [2, 2, 2]
    del loader, given

    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(3)

    # Each worker would read the whole stream.
    assert DataLoader(Stream()).num_workers == 0


def test_no_workers_take_their_options_along(apply):
    apply("workers=0")
    loader = DataLoader(DATA, num_workers=2, prefetch_factor=4, persistent_workers=True)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)


def test_autocast_around_the_outermost_module_only(apply):
    apply("autocast")
    seen = []

    class Inner(nn.Linear):
        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x)

    class Loss(nn.Module):
        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return x["out"].sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner(4, 4)

        def forward(self, x):
            return {"out": self.inner(x)}

    out = Net()(torch.rand(2, 4))
    assert out["out"].dtype is torch.float32
    Loss()(out).backward()
    assert seen == [True, False]
    assert not torch.is_autocast_enabled("cpu")


def test_an_error_within_a_network_leaves_the_next_call_whole(apply):
    apply("autocast")
    net = nn.Linear(4, 4)
    with pytest.raises(RuntimeError):
        net(torch.rand(2, 3))
    assert not torch.equal(net(torch.full((1, 4), 0.1)), net.forward(torch.full((1, 4), 0.1)))
