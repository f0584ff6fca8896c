"""Cures put into torch from outside: what the script then gets, and that its results stay."""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.profiler
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hasten.study

INJECT = Path(hasten.study.__file__).parent / "script" / "inject"
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


@pytest.fixture
def apply(monkeypatch):
    """`cures.apply`, all of whose patches are undone afterwards."""
    patched = [
        (DataLoader, "__init__"),
        (nn.Module, "__call__"),
        (nn.Module, "zero_grad"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.cuda, "empty_cache"),
        (gc, "collect"),
        (torch.autograd.set_detect_anomaly, "__init__"),
        (torch.autograd.detect_anomaly, "__enter__"),
        (torch.profiler, "profile"),
        (torch.autograd.profiler, "profile"),
        (torch.autograd.profiler, "emit_nvtx"),
        (torch.autograd, "gradcheck"),
        (torch.autograd, "gradgradcheck"),
        (torch.backends.cudnn, "benchmark"),
        (vars(type(torch.backends.cudnn))["benchmark"], "setter"),
        *((kind, "__init__") for kind in FUSED),
    ]
    for owner, name in patched:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.syspath_prepend(str(INJECT))
    return importlib.import_module("hasten_probe.cures").apply


class Counting(Dataset):
    """Counts how often an item is made."""

    def __init__(self, count=6):
        self.count, self.made = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        self.made += 1
        return torch.full((3,), float(index))


def test_an_unknown_cure_is_named(apply):
    with pytest.raises(ValueError, match=r"unknown cure 'faster'; there are autocast, cache-items"):
        apply("faster")
    with pytest.raises(ValueError, match="only bfloat16"):
        apply("autocast=float16")


def test_workers_reach_map_style_loaders_however_they_were_called(apply):
    assert "num_workers=2" in apply("workers=2")
    loader = DataLoader(Counting(), 2, False)
    assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (2, True, 2)
    given = DataLoader(Counting(), batch_size=3, num_workers=0, drop_last=True)
    assert (given.num_workers, given.drop_last) == (2, True)
    assert [batch.shape[0] for batch in loader] == [2, 2, 2]
    del loader, given

    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(3)

    # Each worker would read the whole stream.
    assert DataLoader(Stream()).num_workers == 0


def test_no_workers_take_their_options_along(apply):
    apply("workers=0")
    loader = DataLoader(Counting(), num_workers=2, prefetch_factor=4, persistent_workers=True)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)


def test_workers_in_monais_loader(apply):
    from monai.data import DataLoader as MonaiLoader

    apply("workers=1")
    assert MonaiLoader(Counting(), batch_size=2, num_workers=0).num_workers == 1


def test_prefetch_only_with_workers(apply):
    apply("prefetch=7")
    assert DataLoader(Counting(), num_workers=1).prefetch_factor == 7
    assert DataLoader(Counting()).prefetch_factor is None
    apply("persistent-workers")
    assert DataLoader(Counting(), num_workers=1).persistent_workers
    assert not DataLoader(Counting()).persistent_workers


def test_pinned_memory_needs_a_device(apply, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="CUDA"):
        apply("pin-memory")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    apply("pin-memory")
    assert DataLoader(Counting()).pin_memory


def test_items_are_kept_and_given_as_copies(apply):
    apply("cache-items")
    dataset = Counting()
    loader = DataLoader(dataset, batch_size=None)
    first = list(loader)
    first[2].zero_()
    assert [float(item[0]) for item in loader] == [0, 1, 2, 3, 4, 5]
    assert dataset.made == 6
    assert isinstance(loader.dataset, Counting)
    assert type(loader.dataset).__name__ == "Counting"
    assert DataLoader(dataset).dataset is dataset


def test_items_that_find_no_room_are_made_again(apply, monkeypatch):
    apply("cache-items")
    monkeypatch.setattr(sys.modules["hasten_probe.cure_data"], "memory", lambda: (1, 100))
    dataset = Counting()
    loader = DataLoader(dataset, batch_size=None)
    assert len(list(loader)) == len(list(loader)) == 6
    assert dataset.made == 12


def test_what_can_not_be_kept_stays(apply):
    apply("cache-items")
    plain = [1.0, 2.0]
    assert DataLoader(plain, batch_size=None).dataset is plain
    assert next(iter(DataLoader(TensorDataset(torch.arange(3)), batch_size=3)))[0].tolist() == [0, 1, 2]


def test_monai_transforms_are_kept_up_to_the_first_random_one(apply):
    from monai.data import Dataset as MonaiDataset
    from monai.transforms import Compose, Lambda, RandScaleIntensity

    apply("cache-transforms")
    calls = []

    def load(value):
        calls.append(value)
        return np.full((1, 2, 2), value, np.float32)

    dataset = MonaiDataset([1.0, 2.0], Compose([Lambda(load), RandScaleIntensity(0.5, prob=1.0)]).set_random_state(0))
    loader = DataLoader(dataset, batch_size=2)
    one, two, three = (next(iter(loader)).numpy().copy() for _ in range(3))
    assert len(calls) == 2
    assert not np.array_equal(one, two)
    assert not np.array_equal(two, three)
    assert np.all((one[1] / two[1] > 0.3) & (one[1] / two[1] < 3))
    assert isinstance(loader.dataset, MonaiDataset)


def test_fused_optimizers(apply):
    output = apply("fused-optimizer")
    assert "AdamW" in output
    net = nn.Linear(2, 2)
    assert torch.optim.AdamW(net.parameters(), 1e-2).defaults["fused"] is True
    assert torch.optim.Adam(net.parameters(), foreach=True).defaults["fused"] is True
    assert torch.optim.Adam([{"params": net.parameters()}]).param_groups[0]["fused"] is True
    assert torch.optim.SGD(net.parameters(), lr=0.1, fused=False).defaults["fused"] is False
    assert not torch.optim.RMSprop(net.parameters()).defaults.get("fused")
    # On what fused kernels don't take, the optimizer is as it would be.
    assert not torch.optim.Adam([torch.ones(2, dtype=torch.complex64, requires_grad=True)]).defaults["fused"]


def test_gradients_are_forgotten(apply):
    apply("set-to-none")
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for clear in (optimizer.zero_grad, net.zero_grad):
        net(torch.ones(1, 2)).sum().backward()
        clear(set_to_none=False)
        assert net.weight.grad is None


def test_autocast_around_the_outermost_module_only(apply):
    apply("autocast=bf16")
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


def test_channels_last_gives_the_same_numbers(apply):
    net = nn.Conv2d(3, 4, 3)
    x = torch.rand(2, 3, 6, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plain = net(x)
    apply("channels-last")
    assert torch.allclose(net(x), plain, atol=1e-6)
    assert net.weight.is_contiguous(memory_format=torch.channels_last)
    assert optimizer.param_groups[0]["params"][0] is net.weight


def test_cudnn_benchmark_stays_on(apply):
    apply("cudnn-benchmark")
    torch.backends.cudnn.benchmark = False
    assert torch.backends.cudnn.benchmark


def test_anomaly_detection_stays_off(apply):
    apply("no-anomaly")
    try:
        torch.autograd.set_detect_anomaly(True)
        assert not torch.is_anomaly_enabled()
        with torch.autograd.set_detect_anomaly(True):
            assert not torch.is_anomaly_enabled()
        with torch.autograd.detect_anomaly():
            assert not torch.is_anomaly_enabled()
    finally:
        torch.set_anomaly_enabled(False)


def test_profilers_do_nothing_and_take_what_they_are_asked(apply):
    apply("no-profiler")
    with torch.profiler.profile(activities=[]) as profiler:
        assert not torch.autograd._profiler_enabled()
        profiler.step()
    print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=5))
    assert [event.key for event in profiler.events()] == []
    with torch.autograd.profiler.profile() as old:
        assert not torch.autograd._profiler_enabled()
    old.export_chrome_trace("nowhere.json")
    assert not Path("nowhere.json").exists()


def test_checks_and_housekeeping_are_left_out(apply):
    apply("no-gradcheck")
    apply("no-empty-cache")
    apply("no-gc-collect")
    assert gc.collect() == 0
    assert torch.autograd.gradcheck(lambda x: x.detach(), torch.ones(1, requires_grad=True))
    assert torch.cuda.empty_cache() is None


def test_several_cures_add_up(apply):
    apply("workers=1")
    apply("prefetch=3")
    apply("cache-items")
    loader = DataLoader(Counting(), batch_size=2)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 3)
    assert [batch[0, 0].item() for batch in loader] == [0, 2, 4]
