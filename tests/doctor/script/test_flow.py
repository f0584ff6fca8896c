"""Where a network's outputs go: whether anything takes them."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hasten.doctor.script import launch


@pytest.fixture
def followed(monkeypatch):
    """Runs a step twice, followed; returns the networks whose outputs nobody took."""
    monkeypatch.syspath_prepend(str(launch.INJECT))
    flow = importlib.import_module("hasten_probe.on_flow")

    def run(step):
        line = SimpleNamespace(stack=["overhead"])
        session = SimpleNamespace(index=1, live=lambda: True, validating=None, hooked={}, line=line, depth=0, cpu={})
        session.loop_code, session.row = None, lambda table, site: run.loops.setdefault(site, Counter())
        following = flow.Flow(session)
        try:
            for session.index in (1, 2):
                step(following.use)
        finally:
            needless = following.needless()
        return [module for module, _ in needless]

    run.loops = {}
    yield run
    for name in [name for name in sys.modules if name.startswith("hasten_probe")]:
        del sys.modules[name]


@pytest.fixture
def nets():
    return [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(2)]


def _trained(use, loss):
    use(loss)
    loss.backward()


def test_what_enters_no_loss_is_needless(followed, nets):
    student, teacher = nets
    kept = {}

    def step(use):
        image = torch.rand(3, 4)
        kept["scores"] = student(image)
        with torch.no_grad():
            kept["soft"] = teacher(image).softmax(1)
        _trained(use, kept["scores"].mean())

    assert followed(step) == [teacher]


@pytest.mark.parametrize(
    "take",
    [
        lambda soft, use, bank: soft.mean(),
        lambda soft, use, bank: soft.data.view(-1)[0],
        lambda soft, use, bank: torch.zeros(3, 4).masked_fill(soft > 0.5, 1.0).sum(),
        lambda soft, use, bank: soft.sum().item() * 0.0,
        lambda soft, use, bank: use(soft) or 0.0,
        lambda soft, use, bank: bank.append(soft.detach().mean()) or 0.0,
        lambda soft, use, bank: bank[0].copy_(soft.mean(0)).sum() * 0.0,
    ],
    ids=["loss", "data", "mask", "item", "host", "kept", "written into a bank"],
)
def test_what_is_taken_in_any_way_is_not(followed, nets, take):
    student, teacher = nets
    bank = [torch.zeros(4)]

    def step(use):
        image = torch.rand(3, 4)
        scores = student(image)
        with torch.no_grad():
            soft = teacher(image).softmax(1)
        taken = take(soft, use, bank)
        _trained(use, scores.mean() + taken)

    assert followed(step) == []


def test_features_that_a_hook_takes_out_count_as_outputs(followed, nets):
    student, teacher = nets
    features = {}
    teacher[0].register_forward_hook(lambda module, args, result: features.update(last=result))

    def step(use):
        image = torch.rand(3, 4)
        teacher(image)
        _trained(use, (student(image) - features["last"]).square().mean())

    assert followed(step) == []


def test_nothing_is_left_behind(followed, nets):
    followed(lambda use: nets[0](torch.rand(3, 4)))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_python_loop_is_counted_where_it_runs_and_not_in_networks_or_for_few(followed, nets):
    class Looped(nn.Linear):
        def forward(self, scores):
            return torch.stack([super(Looped, self).forward(scores[number]) for number in range(9)])

    network = Looped(4, 4)

    def overlap(scores, most):
        return sum((scores[number] > 0.5).sum() for number in range(most))

    def step(use):
        scores = network(torch.rand(9, 4))
        use([(scores[number] > 0.5).sum() for number in range(7)])
        use(overlap(scores, 9))
        _trained(use, scores.mean())

    assert followed(step) == []
    ((site, counts),) = followed.loops.items()
    assert site.startswith(__file__)
    assert counts["count"] == 2 * 4 * 9, "indexing, comparing, summing and adding, in both steps"
