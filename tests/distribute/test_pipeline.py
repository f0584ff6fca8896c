"""Networks cut into stages: where, what each process keeps, and that training is that of one process."""

from __future__ import annotations

from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hasten.config.schema import DistributeConfig, NetworkConfig, RunConfig, SampleConfig, TrainConfig
from hasten.distribute.pipeline import Pipeline, StageModule, Stages, keep_stage, named_state, stages_of
from hasten.distribute.pipeline_partition import Costs, count_costs, cut_places, flowing, operations_of
from hasten.distribute.world import World
from hasten.nets.build import build_network
from hasten.nets.surgery.operate import operate
from tests.distribute.ranks import run_ranks

NETS: dict[str, dict[str, Any]] = {
    "unet": {},
    "segresnet": {},
    "dynunet": {"deep_supervision": 1},
    "plainconvunet": {},
    "residualencoderunet": {"blocks": (1, 2, 1)},
}


def build(name: str, **settings: Any) -> nn.Module:
    settings = {"channels": (4, 8, 16), **settings}
    config = NetworkConfig(name=name, strides=((2, 2, 2),) * 2, **settings)  # type: ignore[arg-type]
    return build_network(config, num_channels=2, num_classes=3, spatial_dims=3)


# Cutting


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("name", NETS)
def test_stages_one_after_the_other_are_the_network(name: str, norm: str) -> None:
    """Forward and backward; each stage with its own layers only, four of them."""
    network = build(name, norm=norm, **NETS[name]).train()
    image = torch.randn(2, 2, 16, 16, 16)
    operate(network, image)
    operations = operations_of(network)
    places = cut_places(count_costs(network, operations), 4)
    stages = stages_of(network, operations, places)
    modules = [_kept(network, stages, number) for number in range(4)]
    sizes = [sum(value.numel() for _, value in named_state(module)) for module in modules]
    assert sum(sizes) == sum(value.numel() for _, value in named_state(network))
    assert all(any(weight.requires_grad for weight in module.parameters()) for module in modules)

    network(image).square().mean().backward()
    values: Any = (image,)
    for number, module in enumerate(modules):
        values = StageModule(module, stages, number)(*values)
    values.square().mean().backward()
    results = {key: weight.grad for module in modules for key, weight in module.named_parameters()}
    for key, weight in network.named_parameters():
        if weight.requires_grad:
            assert results[key] is not None, key
            # Where more than two operations use a tensor, a cut changes the order in which their gradients add up.
            torch.testing.assert_close(results[key], weight.grad, rtol=1e-5, atol=1e-8, msg=key)


def _kept(network: nn.Module, stages: Any, number: int) -> nn.Module:
    import copy

    module = copy.deepcopy(network)
    keep_stage(module, stages, number)
    return module


def test_a_shared_weight_is_known_under_all_its_names() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    assert [name for name, _ in named_state(network)] == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("name", NETS)
def test_stages_cost_about_the_same(name: str) -> None:
    network = build(name, channels=(16, 32, 64))
    counted = count_costs(network, operations_of(network))
    for stages in (2, 3):
        ends = [0, *cut_places(counted, stages), len(counted.costs)]
        shares = [sum(counted.costs[begin:end]) for begin, end in pairwise(ends)]
        assert max(shares) < 1.35 * sum(shares) / stages


@st.composite
def counted(draw: Any) -> Costs:
    size = draw(st.integers(2, 9))
    whole = st.lists(st.integers(0, 20), min_size=size, max_size=size)
    allowed = [False, *draw(st.lists(st.booleans(), min_size=size - 1, max_size=size - 1))]
    trained = draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    costs = tuple(float(cost) for cost in draw(whole))
    return Costs(costs, tuple(draw(whole)), tuple(allowed), tuple(trained))


@given(costs=counted(), stages=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_places_are_the_best_of_all(costs: Costs, stages: int) -> None:
    """By trying all of them."""
    options = []
    for places in combinations([place for place, allowed in enumerate(costs.allowed) if allowed], stages - 1):
        parts = list(pairwise([0, *places, len(costs.costs)]))
        if all(sum(costs.trained[begin:end]) for begin, end in parts):
            options.append((dearest(costs, parts), list(places)))
    if not options:
        with pytest.raises(ValueError, match="can be cut into"):
            cut_places(costs, stages)
        return
    result = cut_places(costs, stages)
    assert (dearest(costs, list(pairwise([0, *result, len(costs.costs)]))), result) in options
    assert dearest(costs, list(pairwise([0, *result, len(costs.costs)]))) == min(options)[0]


def dearest(costs: Costs, parts: list[tuple[int, int]]) -> float:
    return max(sum(costs.costs[begin:end]) + 200 * costs.crossing[begin] for begin, end in parts)


class Odd(nn.Module):
    """What cutting must mind: a layer that is used twice, one that works in place, a shape that is used later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.third = (nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
        self.act = nn.ReLU(inplace=True)

    def forward(self, image: Tensor) -> Tensor:
        small = functional.avg_pool2d(self.act(self.first(image)), 2)
        again = self.twice(self.twice(small))
        return self.third(functional.interpolate(again, size=image.shape[2:]))


def test_no_cut_goes_through_what_belongs_together() -> None:
    network = Odd()
    operations = operations_of(network)
    counted = count_costs(network, operations)
    names = [str(node.name) for node in operations.nodes]
    allowed = {name for name, place in zip(names, counted.allowed, strict=True) if place}
    assert "act" not in allowed, "in place on what another stage sent"
    assert "twice_1" not in allowed, "one layer in two stages"
    assert "third" in allowed
    flow = [node.name for node in flowing(operations, names.index("third"))]
    assert flow == ["interpolate"]


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.layer(image)
        return result if image.sum() > 0 else -result


def test_a_part_that_depends_on_values_stays_whole() -> None:
    network = nn.Sequential(Choosing(), nn.Conv2d(2, 2, 1))
    assert [node.target for node in operations_of(network).nodes[1:]] == ["0", "1"]


@pytest.mark.parametrize(
    ("network", "stages", "message"),
    [
        (Choosing(), 2, "Choosing can't be cut into stages.*use fsdp or ddp"),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU()), 2, "into 1 stages at most, and there are 2 processes; start 1"),
        (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), 2, "takes no image of side 32 to 256"),
        (nn.Bilinear(2, 2, 2), 2, "Bilinear takes 2 inputs"),
    ],
    ids=["depends on values", "too few layers", "no convolution", "two inputs"],
)
def test_what_cannot_be_cut(network: nn.Module, stages: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cut_places(count_costs(network, operations_of(network)), stages)


# Settings and states


def test_an_error_of_a_layer_stays_what_it_is() -> None:
    """fx makes others of it, of many lines; a run's own network may name a mistake of its user by one."""
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
    stage = StageModule(network, stages_of(network, operations_of(network), ()), 0)
    error = KeyError("the key")
    network[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(KeyError) as raised:
        stage(torch.zeros(1, 1, 4, 4))
    assert raised.value is error
    assert error.args == ("the key",)


def test_settings_that_do_not_fit_are_told() -> None:
    config = RunConfig(
        train=TrainConfig(precision="fp16", compile=True, capture=True, activations="1GiB"),
        sample=SampleConfig(batch_size=6, fit_batch=True),
        distribute=DistributeConfig(strategy="pipeline", sync_norm=True, gradients="fp16"),
    )
    results = {mistake.partition(":")[0] for mistake in Pipeline(World(), config.distribute).mistakes(config)}
    assert results == {
        "train.precision", "train.compile", "train.capture", "train.activations",
        "sample.fit_batch", "distribute.sync_norm", "distribute.gradients", "distribute.micro_batches",
    }  # fmt: skip


def test_pieces_that_do_not_share_a_batch_are_told_with_a_number_that_does() -> None:
    config = RunConfig(sample=SampleConfig(batch_size=12), train=TrainConfig(accumulate=2))
    (mistake,) = Pipeline(World(), config.distribute).mistakes(config)
    assert mistake.startswith("distribute.micro_batches: 4 can't share 6 patches")
    assert mistake.endswith("use 3")
    fitting = RunConfig(sample=SampleConfig(batch_size=8), train=TrainConfig(accumulate=2))
    assert Pipeline(World(), fitting.distribute).mistakes(fitting) == []


def test_a_state_of_another_network_is_left_for_restoring_to_refuse() -> None:
    state = {
        "network": {"a": torch.zeros(1)},
        "average": None,
        "optimizer": {"state": {}, "param_groups": [{"params": [0]}]},
    }
    for names, layout in ((["a", "b"], [["a"]]), (["a"], [["a", "b"]])):
        strategy = Pipeline(World(), DistributeConfig())
        skeleton: Any = SimpleNamespace(state_dict=lambda names=names: dict.fromkeys(names))
        strategy._stages, strategy._layout = Stages(operations_of(nn.Conv2d(1, 1, 1)), (), {}, skeleton), layout
        assert strategy.scatter_state(state) is state


# With ranks


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_real_networks_train_as_in_one_process(world: int) -> None:
    """Operated on, with batch norms, deep supervision, bf16 in channels-last, and batches of several forms."""
    ranks = run_ranks("tests.distribute.pipeline_rank", world)
    result = ranks[0]
    for case in ("unet", "segresnet", "dynunet", "sides", "muon", "bf16"):
        tolerance = 5e-2 if case == "bf16" else 2e-6
        assert set(result[case]) == {"network", "average", "optimizer", "whole", "losses"}
        assert {name: value for name, value in result[case].items() if not value <= tolerance} == {}, case
    assert all(loss == result["dropout"] for loss in (rank["dropout"] for rank in ranks))
    kept = [rank["kept"] for rank in ranks]
    for part in ("weights", "average"):
        assert sum(one[part] for one in kept) == kept[0]["whole"]
        assert all(one[part] for one in kept)
    assert all(one["moments"] for one in kept)
    assert {one["schedule"][0] for one in kept} == {"Schedule1F1B" if world == 2 else "ScheduleGPipe"}
    assert [rank["left_out"] for rank in ranks] == [{"skipped": 1, "same": True}] * world
