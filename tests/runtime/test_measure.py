from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.config.schema import LossConfig, NetworkConfig
from hasten.nets.build import build_loss, build_network
from hasten.observe.cpu_load import LoadMeter
from hasten.runtime import measure
from hasten.runtime.measure import Probe, faster_compiled, fastest_variant
from hasten.runtime.variant import Variant, VariantTimes, explain

CPU = torch.device("cpu")
PLAIN = Variant(precision="fp32", channels_last=False)
LAST = Variant(precision="fp32", channels_last=True)
SHORT = Variant(precision="bf16", channels_last=False)
BOTH = Variant(precision="bf16", channels_last=True)
ALL = [PLAIN, LAST, SHORT, BOTH]


class Clock:
    """Time that passes only when a network says so."""

    now = 0.0
    passes = 0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measure, "time", made)
    monkeypatch.setattr(LoadMeter, "others", lambda self: 0.0)
    return made


class _Wrong(torch.autograd.Function):
    """Forward is sound, the gradient is not."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


def fake(
    clock: Clock,
    seconds: dict[Variant, list[float]],
    *,
    output: dict[Variant, float] | None = None,
    gradient: dict[Variant, list[float]] | None = None,
) -> nn.Module:
    """A weight per class; passes take `seconds` in turn, and may give wrong scores or gradients."""
    turn = dict.fromkeys(ALL, 0)

    class Fake(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.5, -0.25, 1.0]))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, image: Tensor) -> Tensor:
            short = torch.is_autocast_enabled("cpu")
            variant = Variant(
                precision="bf16" if short else "fp32",
                channels_last=image.is_contiguous(memory_format=torch.channels_last_3d),
            )
            number = turn[variant]
            turn[variant] += 1
            clock.passes += 1
            clock.now += seconds[variant][number % len(seconds[variant])]
            self.calls += 1  # type: ignore[operator]
            factors = (gradient or {}).get(variant, [1.0])
            weight = _Wrong.apply(self.weight, factors[number % len(factors)])
            return image[:, :1] * weight.view(1, 3, 1, 1, 1) * (output or {}).get(variant, 1.0)

    return Fake()


def constant(**seconds: float) -> dict[Variant, list[float]]:
    return {variant: [seconds[name]] for variant, name in zip(ALL, ("plain", "last", "short", "both"), strict=True)}


EVEN = constant(plain=0.5, last=0.375, short=0.25, both=0.125)


def probe() -> Probe:
    return Probe(loss=build_loss(LossConfig()), shape=(2, 2, 4, 4, 4), num_classes=3, spatial_dims=3, device=CPU)


def test_the_fastest_of_the_allowed_is_taken(clock: Clock, tmp_path: Path) -> None:
    result = fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path)
    assert result.variant == BOTH
    assert list(result.seconds) == ["bf16 channels-last", "bf16", "fp32 channels-last", "fp32"]
    assert list(result.seconds.values()) == [0.125, 0.25, 0.375, 0.5]
    assert result.excluded == ()
    result = fastest_variant(fake(clock, EVEN), probe(), [PLAIN, LAST], tmp_path)
    assert result.variant == LAST


def test_what_a_busy_machine_measured_decides_nothing(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual variant is taken where it is sound, whatever it took; the run itself times it once."""
    monkeypatch.setattr(LoadMeter, "others", lambda self: 1.5)
    slow = constant(plain=0.125, last=1.0, short=1.0, both=1.0)
    assert fastest_variant(fake(clock, slow), probe(), ALL, tmp_path).variant == BOTH
    wrong = fake(clock, slow, output={BOTH: 1.5})
    assert fastest_variant(wrong, probe(), ALL, tmp_path).variant == PLAIN
    timed: dict[str, VariantTimes] = {}
    first = fastest_variant(fake(clock, slow), probe(), ALL, tmp_path, is_short=lambda _: True, timed=timed)
    passes = clock.passes
    assert fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path, timed=timed) == first
    assert (first.variant, first.others, clock.passes) == (BOTH, 1.5, passes)


def test_what_others_disturb_is_timed_again(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1.5, 0.0])
    monkeypatch.setattr(LoadMeter, "others", lambda self: next(readings))
    network = fake(clock, EVEN | {BOTH: 4 * [4.0] + 4 * [0.125]})
    result = fastest_variant(network, probe(), ALL, tmp_path, seconds=60.0, is_short=lambda _: True)
    assert (result.variant, result.pass_s, result.others) == (BOTH, 0.125, 0.0)


def test_a_short_run_takes_the_faster_of_two(clock: Clock, tmp_path: Path) -> None:
    slow = constant(plain=0.125, last=1.0, short=1.0, both=1.0)
    result = fastest_variant(fake(clock, slow), probe(), ALL, tmp_path, is_short=lambda _: True)
    assert (result.variant, result.pass_s, clock.passes) == (PLAIN, 0.125, 6)


def test_without_time_to_measure_the_first_variant_is_taken(clock: Clock, tmp_path: Path) -> None:
    result = fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path, seconds=3.0)
    assert (result.variant, clock.passes) == (PLAIN, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *({"output": {BOTH: factor}} for factor in (1.5, float("nan"))),
        *({"gradient": {BOTH: [factor]}} for factor in (1.5, 0.5, 0.0, float("nan"), float("inf"), 1e30)),
        {"gradient": {BOTH: [1, 1, 1, 1e9]}},  # only now and then
    ],
)
def test_a_variant_with_another_loss_or_gradient_is_out(clock: Clock, tmp_path: Path, wrong: dict[str, Any]) -> None:
    result = fastest_variant(fake(clock, EVEN, **wrong), probe(), ALL, tmp_path)
    assert result.variant == SHORT
    assert result.excluded == ("bf16 channels-last",)
    assert "bf16 channels-last" not in result.seconds


def test_a_second_run_measures_nothing(clock: Clock, tmp_path: Path) -> None:
    memory = tmp_path / "cache" / "measured"
    first = fastest_variant(fake(clock, EVEN, gradient={LAST: [3.0]}), probe(), ALL, memory)
    passes = clock.passes
    assert passes > 0
    again = fastest_variant(fake(clock, constant(plain=1, last=9, short=9, both=9)), probe(), ALL, memory)
    assert again == first
    assert clock.passes == passes
    assert explain(again) == explain(first)


def other_probe(**changes: Any) -> Probe:
    own = probe()
    fields = {name: getattr(own, name) for name in ("loss", "shape", "num_classes", "spatial_dims", "device")}
    return Probe(**{**fields, **changes})


def test_another_shape_choice_or_network_is_measured_for_itself(clock: Clock, tmp_path: Path) -> None:
    def measures(network: nn.Module, on: Probe, allowed: list[Variant]) -> bool:
        kept = len(list(tmp_path.iterdir()))
        fastest_variant(network, on, allowed, tmp_path)
        return len(list(tmp_path.iterdir())) == kept + 1

    assert measures(fake(clock, EVEN), probe(), ALL)
    assert not measures(fake(clock, EVEN), probe(), ALL)
    assert measures(fake(clock, EVEN), other_probe(shape=(2, 2, 4, 4, 8)), ALL)
    assert measures(fake(clock, EVEN), probe(), [PLAIN, LAST])
    wide, narrow = (
        build_network(
            NetworkConfig(name="unet", channels=(2, 4), strides=(stride,)),
            num_channels=2,
            num_classes=3,
            spatial_dims=3,
        )
        for stride in ((2, 2, 2), (1, 2, 2))
    )
    # Their weights have the same shapes; only the strides differ.
    assert [weight.shape for weight in wide.parameters()] == [weight.shape for weight in narrow.parameters()]
    assert measures(wide, probe(), [PLAIN, LAST])
    assert measures(narrow, probe(), [PLAIN, LAST])


OF_ANOTHER = {"seconds": {"fp64": 1}, "variant": {"precision": "fp64", "channels_last": False}, "excluded": []}


@pytest.mark.parametrize("damage", ["{", "[]", json.dumps(OF_ANOTHER)])
def test_a_damaged_memory_is_measured_again_with_a_warning(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    first = fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path)
    assert caplog.records == []
    (kept,) = tmp_path.iterdir()
    content = kept.read_text()
    kept.write_text(damage)
    passes = clock.passes
    assert fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path) == first
    assert clock.passes > passes
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(kept) in caplog.text
    assert json.loads(kept.read_text()) == json.loads(content)


def real_network(dropout: float = 0.0) -> nn.Module:
    config = NetworkConfig(name="unet", channels=(4, 8), strides=((2, 2, 2),), norm="batch", dropout=dropout)
    torch.manual_seed(0)
    return build_network(config, num_channels=2, num_classes=3, spatial_dims=3)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("through", ["fastest_variant", "faster_compiled"])
def test_the_network_and_the_random_state_are_left_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: bool, through: str
) -> None:
    network = real_network(dropout=0.3).train(training)
    before = copy.deepcopy(network.state_dict())
    strides = {name: value.stride() for name, value in network.state_dict().items()}
    random_state = torch.get_rng_state()
    if through == "fastest_variant":
        fastest_variant(network, probe(), ALL, tmp_path)
    else:
        monkeypatch.setattr(torch, "compile", lambda module, **_: module)
        faster_compiled(network, probe(), BOTH, always=True)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert network.training == training
    assert all(module.training == training for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.stride() == strides[name]


@pytest.mark.parametrize("fails", ["at once", "at the first call"])
@pytest.mark.parametrize("always", [False, True])
def test_a_failing_compiler_leaves_the_network_eager_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str, always: bool
) -> None:
    class Broken(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            raise RuntimeError("no C++ compiler\nand a long explanation")

    def compile(module: nn.Module, **_: Any) -> nn.Module:
        if fails == "at once":
            raise RuntimeError("no C++ compiler\nand a long explanation")
        return Broken()

    monkeypatch.setattr(torch, "compile", compile)
    network = real_network()
    result, engaged = faster_compiled(network, probe(), PLAIN, always=always)
    assert result is network
    assert not engaged.on
    assert engaged.reason == "torch.compile failed: no C++ compiler"
    assert [record.getMessage() for record in caplog.records] == ["the network runs uncompiled: no C++ compiler"]


class Compiled(nn.Module):
    """Stands in for what torch.compile gives: another speed, perhaps other scores."""

    def __init__(self, network: nn.Module, clock: Clock, seconds: float, factor: float = 1.0) -> None:
        super().__init__()
        self.network, self.clock, self.seconds, self.factor = network, clock, seconds, factor

    def forward(self, image: Tensor) -> Tensor:
        before = self.clock.now
        output = self.network(image) * self.factor
        self.clock.now = before + self.seconds
        return output


@pytest.mark.parametrize(
    ("seconds", "always", "factor", "on", "why"),
    [
        (0.25, False, 1.0, True, "250 ms against 500 ms eager"),
        (0.496, False, 1.0, False, "not certainly faster: 496 ms against 500 ms eager"),
        (0.8, False, 1.0, False, "not certainly faster"),
        (0.8, True, 1.0, True, "800 ms against 500 ms eager"),
        (0.2, False, 1.5, False, "compiled it gives loss"),
        (0.2, True, 1.5, False, "compiled it gives loss"),
        (0.2, True, float("nan"), False, "gradient norm nan"),
    ],
)
def test_compiled_is_taken_only_if_it_is_faster_and_agrees(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, always: bool, factor: float, on: bool, why: str
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: Compiled(module, clock, seconds, factor))
    network = fake(clock, EVEN)
    result, engaged = faster_compiled(network, probe(), PLAIN, always=always)
    assert engaged.on == on
    assert why in engaged.reason
    if on:
        assert isinstance(result, Compiled)
        assert result.network is network
    else:
        assert result is network


def quick(seconds: float) -> bool:
    return seconds <= 0.125


def test_a_short_run_takes_the_usual_variant_after_a_check(clock: Clock, tmp_path: Path) -> None:
    result = fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path, is_short=quick)
    assert result == VariantTimes({str(BOTH): 0.125}, BOTH, rounds=0)
    assert clock.passes == 6
    assert explain(result).startswith("usually the fastest on such a device")


@pytest.mark.parametrize("longer", [None, lambda seconds: seconds < 0.125])
def test_a_longer_run_compares(clock: Clock, tmp_path: Path, longer: Callable[[float], bool] | None) -> None:
    fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path, is_short=quick)
    result = fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path, is_short=longer)
    assert result.rounds > 0
    assert len(result.seconds) == 4
    # That comparison serves later short runs as well.
    assert fastest_variant(fake(clock, EVEN), probe(), ALL, tmp_path, is_short=quick) == result


@pytest.mark.parametrize(
    "network",
    [
        {"output": {BOTH: 1.5}},
        {"gradient": {BOTH: [2.0]}},
        {"seconds": constant(plain=0.5, last=1, short=1, both=0.75)},
    ],
)
def test_a_wrong_or_slow_usual_variant_is_not_taken(clock: Clock, tmp_path: Path, network: dict[str, Any]) -> None:
    result = fastest_variant(fake(clock, **{"seconds": EVEN} | network), probe(), ALL, tmp_path, is_short=quick)
    assert result.rounds > 0
    assert result.variant != BOTH


def test_the_kernels_of_a_remembered_variant_are_built_together(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    @contextmanager
    def together() -> Iterator[None]:
        before = clock.passes
        yield
        built.append(clock.passes - before)

    monkeypatch.setattr(measure, "triton_works", lambda device: True)
    monkeypatch.setattr(measure, "built_together", together)
    kernels = [PLAIN, replace(BOTH, fused_kernels=True)]
    own = replace(probe(), build_together=True)
    first = fastest_variant(fake(clock, EVEN), own, kernels, tmp_path)
    assert built == [3]  # as timed, twice, and as trained
    passes = clock.passes
    assert fastest_variant(fake(clock, EVEN), own, kernels, tmp_path) == first
    assert built == [3, 1]  # nothing is timed, but Triton's cache may have gone
    assert clock.passes == passes + 1
    fastest_variant(fake(clock, EVEN), probe(), kernels, tmp_path)
    assert built == [3, 1]  # not of a user's own network
