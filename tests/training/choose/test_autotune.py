from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from hasten.cases.types import Case, CaseSet
from hasten.config.decision import Accelerator
from hasten.config.fingerprint import Fingerprint
from hasten.config.plan import decide_settings
from hasten.config.schema import CacheConfig, NetworkConfig, RunConfig, SampleConfig, TrainConfig
from hasten.nets.build import build_network
from hasten.nets.surgery.operate import operate
from hasten.observe.clock import Clock
from hasten.observe.cpu_load import LoadMeter
from hasten.runtime import measure
from hasten.runtime.measure import Probe
from hasten.runtime.variant import Variant, VariantTimes
from hasten.training.choose import autotune
from hasten.training.choose.autotune import choose_autotuning, choose_compiled, choose_variant, probe_of
from hasten.training.choose.experiments import Experiments
from hasten.training.plan import RunPlan, augmentation_of, build_net

GIVEN = "set in the configuration"


def unlimited() -> Experiments:
    return Experiments(Clock())


class StoppedClock(Clock):
    """On which no time passes."""

    @property
    def elapsed(self) -> float:
        return 0.0


def limited_to(seconds: float) -> Experiments:
    return Experiments(StoppedClock(), seconds)


def planned(
    cache: Path,
    *,
    dims: int = 3,
    patch: tuple[int, int, int] = (16, 16, 16),
    strides: tuple[tuple[int, int, int], ...] = ((2, 2, 2), (2, 2, 2)),
    device: str = "cpu",
    batch_size: int = 4,
    spacings: tuple[tuple[float, float, float], ...] = ((3.0, 1.0, 1.0), (1.0, 1.0, 1.0), (2.0, 1.0, 1.0)),
    sample: dict[str, Any] | None = None,
    **train: Any,
) -> RunPlan:
    cases = tuple(Case(id=name, image=(Path(f"{name}.nii"),)) for name in "abc")
    case_set = CaseSet(
        name="set",
        source=cache,
        cases=cases,
        labels={0: "background", 3: "organ"},
        channels=("one", "two"),
        spatial_dims=dims,
    )
    row = (0.0, 0.0)
    statistics = dict.fromkeys(("min", "p0_5", "p50", "p99_5", "max", "mean", "std"), row)
    fingerprint = Fingerprint(
        name="set",
        num_cases=3,
        spatial_dims=dims,
        modality="",
        channels=case_set.channels,
        labels=case_set.labels,
        shapes=(patch,) * 3,
        spacings=spacings,
        sampled_cases=3,
        intensity=statistics,
        foreground_intensity=statistics,
        class_voxels={},
        class_cases={},
        crop_fraction=1.0,
    )
    config = RunConfig(
        cache=CacheConfig(dir=str(cache)),
        sample=SampleConfig(patch=patch, batch_size=batch_size, **(sample or {})),
        network=NetworkConfig(name="unet", channels=(2, 4, 4)[: len(strides) + 1], strides=strides),
        train=TrainConfig(**train),
    )
    config, decisions = decide_settings(fingerprint, config, num_train=2, cuda=False)
    return RunPlan(
        config=config,
        decisions=decisions,
        fingerprint=fingerprint,
        case_set=case_set,
        train=cases[:2],
        validation=cases[2:],
        device=torch.device(device),
        augmentation=augmentation_of(config, fingerprint),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is to be measured; the last of the allowed is the fastest."""
    made: list[tuple[Any, ...]] = []

    def measure(
        network: nn.Module, probe: Probe, allowed: list[Variant], memory: Path, *, seconds: float, passes: float,
        is_short: Callable[[float], bool] | None, timed: dict[str, VariantTimes],
    ) -> VariantTimes:  # fmt: skip
        made.append((network, probe, allowed, memory, is_short))
        return VariantTimes({str(allowed[-1]): 0.01}, allowed[-1])

    monkeypatch.setattr(autotune, "fastest_variant", measure)
    monkeypatch.setattr("hasten.runtime.variant.cpu_has_bf16", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return made


def test_precision_and_format_are_measured_if_open(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    network = nn.Identity()
    result, _, engaged = choose_variant(planned(tmp_path), network, unlimited())
    ((timed, probe, allowed, memory, _),) = asked
    assert timed is network
    assert probe.shape == (min(4, torch.get_num_threads()), 2, 16, 16, 16)
    assert [(variant.precision, variant.channels_last) for variant in allowed] == [
        ("fp32", False),
        ("fp32", True),
        ("bf16", False),
        ("bf16", True),
    ]
    assert memory == tmp_path / "measured"
    assert (result.config.train.precision, result.config.train.channels_last) == ("bf16", True)
    assert engaged["precision"].on
    assert engaged["channels-last"].on
    assert all("bf16 channels-last 10 ms" in each.reason for each in engaged.values())


def test_bf16_is_not_measured_on_a_processor_that_emulates_it(
    tmp_path: Path, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.runtime.variant.cpu_has_bf16", lambda: False)
    _, _, engaged = choose_variant(planned(tmp_path), nn.Identity(), unlimited())
    assert [str(variant) for variant in asked[0][2]] == ["fp32", "fp32 channels-last"]
    assert (engaged["precision"].on, "no bf16 instructions" in engaged["precision"].reason) == (False, True)
    assert "measured" in engaged["channels-last"].reason


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_is_set_is_not_measured(tmp_path: Path, asked: list[tuple[Any, ...]], precision: Any, last: bool) -> None:
    result, _, engaged = choose_variant(
        planned(tmp_path, precision=precision, channels_last=last, compile=False), nn.Identity(), unlimited()
    )
    assert asked == []
    assert (result.config.train.precision, result.config.train.channels_last) == (precision, last)
    assert engaged == {
        "precision": Accelerator(precision != "fp32", "user", f"{precision}: {GIVEN}"),
        "channels-last": Accelerator(last, "user", GIVEN),
    }


def test_what_is_set_in_part_is_measured_in_part(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    _, _, engaged = choose_variant(planned(tmp_path, precision="fp16"), nn.Identity(), unlimited())
    assert [str(variant) for variant in asked[0][2]] == ["fp16", "fp16 channels-last"]
    assert engaged["precision"] == Accelerator(True, "user", f"fp16: {GIVEN}")
    assert "measured" in engaged["channels-last"].reason
    _, _, engaged = choose_variant(planned(tmp_path, channels_last=True), nn.Identity(), unlimited())
    assert [str(variant) for variant in asked[1][2]] == ["fp32 channels-last", "bf16 channels-last"]
    assert engaged["channels-last"] == Accelerator(True, "user", GIVEN)
    assert "measured" in engaged["precision"].reason


@pytest.mark.parametrize(
    ("dims", "patch", "strides", "device", "sound"),
    [
        (3, (12, 12, 12), ((2, 2, 2), (2, 2, 2)), "cpu", True),
        (3, (8, 12, 12), ((2, 2, 2), (2, 2, 2)), "cpu", False),
        (3, (12, 12, 8), ((2, 2, 2), (2, 2, 2)), "cpu", False),
        (3, (4, 12, 12), ((1, 2, 2), (1, 2, 2)), "cpu", True),
        (3, (2, 12, 12), ((1, 2, 2), (1, 2, 2)), "cpu", False),
        (3, (8, 8, 8), ((2, 2, 2), (2, 2, 2)), "cuda", True),
        # The depth of a 2-D image is no side of it.
        (2, (1, 12, 12), ((1, 2, 2), (1, 2, 2)), "cpu", True),
        (2, (1, 8, 12), ((1, 2, 2), (1, 2, 2)), "cpu", False),
    ],
)
def test_layers_whose_bf16_gradients_are_wrong_stay_in_float32(
    tmp_path: Path,
    asked: list[tuple[Any, ...]],
    dims: int,
    patch: tuple[int, int, int],
    strides: tuple[tuple[int, int, int], ...],
    device: str,
    sound: bool,
) -> None:
    run = planned(tmp_path, dims=dims, patch=patch, strides=strides, device=device)
    network = build_network(run.config.network, num_channels=2, num_classes=2, spatial_dims=dims)
    _, _, engaged = choose_variant(run, network, unlimited())
    assert {variant.precision for variant in asked[0][2]} >= {"fp32", "bf16"}
    kept = [name for name, module in network.named_modules() if type(module).__name__.startswith("Fp32")]
    assert (kept == []) is sound
    assert ("stay in float32" in engaged["precision"].reason) is not sound


def test_layers_that_are_set_stay_in_float32(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    run = planned(tmp_path, fp32_layers=("model.0.*",), precision="bf16")
    network = build_net(run)
    _, _, engaged = choose_variant(run, network, unlimited())
    assert "layers stay in float32 (train.fp32_layers)" in engaged["precision"].reason
    assert type(network.model[0].conv).__name__.startswith("Fp32")  # type: ignore[index, union-attr]
    with pytest.raises(ValueError, match=r"train\.fp32_layers: 'absent\.\*' matches no module"):
        choose_variant(planned(tmp_path, fp32_layers=("absent.*",)), build_net(run), unlimited())


def test_a_gpu_without_fast_bf16_is_offered_tf32_too(
    tmp_path: Path, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    choose_variant(
        planned(tmp_path, device="cuda", channels_last=False, fused_kernels=False), nn.Identity(), unlimited()
    )
    assert [str(variant) for variant in asked[0][2]] == ["fp32", "tf32", "bf16"]


def test_a_gpu_with_fast_bf16_takes_hastens_kernels(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    run = planned(tmp_path, device="cuda")
    network = build_network(run.config.network, num_channels=2, num_classes=2, spatial_dims=3)
    operate(network)
    result, _, engaged = choose_variant(run, network, unlimited())
    assert [str(variant) for variant in asked[0][2]] == ["fp32", "bf16 channels-last fused"]
    assert result.config.train.fused_kernels is True
    assert engaged["fused kernels"].on


def test_a_real_measurement_leaves_a_full_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Real passes under a clock of their number, so that no load of the machine decides.
    ticks = itertools.count()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: 1e-3 * next(ticks)))
    monkeypatch.setattr(LoadMeter, "others", lambda self: 0.0)
    run = planned(tmp_path)
    network = build_net(run)
    result, _, engaged = choose_variant(run, network, unlimited())
    assert result.config.train.precision in ("fp32", "bf16")
    assert result.config.train.channels_last is not None
    assert set(engaged) == {"precision", "channels-last"}
    again, _, evidence = choose_variant(run, network, unlimited())
    assert (again.config, evidence) == (result.config, engaged)


def test_the_probe_is_a_small_batch_of_the_runs_own_shape(tmp_path: Path) -> None:
    assert probe_of(planned(tmp_path, batch_size=1)).shape == (1, 2, 16, 16, 16)
    threads = torch.get_num_threads()
    assert probe_of(planned(tmp_path, batch_size=64)).shape == (min(64, threads), 2, 16, 16, 16)
    flat = probe_of(planned(tmp_path, dims=2, patch=(1, 16, 32), strides=((1, 2, 2),)))
    assert (flat.shape, flat.spatial_dims, flat.num_classes) == ((min(4, threads), 2, 1, 16, 32), 2, 2)


@pytest.mark.parametrize(
    ("compile", "steps", "step_seconds", "tried"),
    [
        (None, 100, 1.0, False),
        (None, 100, 1e5, True),
        (None, 10**9, 1.0, True),
        (True, 1, 0.0, True),
        (False, 10**9, 1e5, False),
    ],
)
@pytest.mark.parametrize("works", [False, True])
def test_the_network_is_compiled_if_set_or_if_the_run_is_long(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compile: bool | None,
    steps: int,
    step_seconds: float,
    tried: bool,
    works: bool,
) -> None:
    calls: list[Any] = []
    network, other = nn.Identity(), nn.Identity()

    def compiled(own: nn.Module, probe: Probe, variant: Variant, *, always: bool) -> tuple[nn.Module, Accelerator]:
        calls.append((own, variant, always))
        return (
            (other, Accelerator(True, "measured", "twice as fast"))
            if works
            else (own, Accelerator(False, "measured", "not faster"))
        )

    monkeypatch.setattr(autotune, "faster_compiled", compiled)
    run = planned(tmp_path, compile=compile, steps=steps, precision="bf16", channels_last=True)
    result, chosen, accelerators = choose_compiled(run, network, step_seconds * steps, unlimited())
    engaged = accelerators["compiled network"]
    if tried:
        assert calls == [(network, Variant(precision="bf16", channels_last=True), compile is True)]
    else:
        assert calls == []
        assert engaged.reason == GIVEN if compile is False else "not 3 times as much" in engaged.reason
    assert chosen is (other if tried and works else network)
    assert engaged.on is result.config.train.compile is (tried and works)
    assert dataclasses.replace(result.config.train, compile=None) == dataclasses.replace(run.config.train, compile=None)


@pytest.mark.parametrize(("predicted", "on"), [(0.0, False), (599.0, False), (601.0, True)])
def test_cudnn_times_its_algorithms_in_long_runs_only(predicted: float, on: bool) -> None:
    autotune, engaged = choose_autotuning(torch.device("cuda"), predicted)
    assert (autotune, engaged["cuDNN autotuning"].on) == (on, on)
    assert ("was not measured" in engaged["cuDNN autotuning"].reason) == (predicted == 0)


def test_compiling_the_network_is_tried_in_long_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Accelerator(False, "measured", "tried")
    monkeypatch.setattr(autotune, "faster_compiled", lambda network, *_, **__: (network, outcome))
    for device, seconds, tried in (("cpu", 1199.0, False), ("cpu", 1201.0, True), ("cuda", 1e9, False)):
        run = planned(tmp_path, device=device, precision="bf16", channels_last=True)
        _, _, engaged = choose_compiled(run, nn.Identity(), seconds, unlimited())
        assert (engaged["compiled network"] is outcome) is tried


@pytest.mark.parametrize(("wanted", "steps", "tried"), [(None, 199, False), (None, 200, True), (True, 10, True)])
def test_short_runs_capture_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool | None, steps: int, tried: bool
) -> None:
    for name in ("why_not", "why_no_batch"):
        monkeypatch.setattr(autotune, name, lambda _: None)
    monkeypatch.setattr(autotune, "captured_run", lambda *given, **others: given)
    program = cast(Any, SimpleNamespace(segment="segment"))
    run = planned(tmp_path, capture=wanted, steps=steps)
    _, captured, engaged = autotune.choose_capture(run, cast(Any, "step"), program, steps)
    assert (captured is not None) is tried
    assert tried or "runs of 200 or more" in engaged["CUDA graph"].reason


def test_a_gpu_compares_nothing_where_its_kernels_work(
    tmp_path: Path, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for works in (True, False):
        monkeypatch.setattr(autotune, "triton_works", lambda device, works=works: works)
        choose_variant(planned(tmp_path, device="cuda", steps=60000), nn.Identity(), unlimited())
    with_triton, without = (is_short for *_, is_short in asked)
    assert with_triton(1.0)
    assert without is None


@pytest.mark.parametrize(
    ("settings", "compiled", "may"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"precision": "bf16"}, True, False),
        ({"precision": "fp32"}, True, True),
        ({"channels_last": False}, True, False),
    ],
)
def test_a_short_run_on_a_processor_compares_nothing(
    tmp_path: Path, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any],
    compiled: bool, may: bool,
) -> None:  # fmt: skip
    kernels = SimpleNamespace(functions="functions" if compiled else None)
    monkeypatch.setattr(autotune, "cpu_kernels", lambda: kernels)
    for steps, experiments in ((1000, unlimited()), (1001, unlimited()), (1001, limited_to(1000.0))):
        choose_variant(planned(tmp_path, steps=steps, **settings), nn.Identity(), experiments)
    if may:
        # In the last case 1000 s are left for steps of 1 s.
        each = probe_of(planned(tmp_path)).shape[0] / 4
        (*_, short), (*_, endless), (*_, limited) = asked
        assert (short(each), endless, limited(each), limited(each / 2)) == (True, None, True, False)
    else:
        assert [is_short for *_, is_short in asked] == [None, None, None]


def test_the_stages_of_patches_are_shares_of_the_steps_that_fit(tmp_path: Path) -> None:
    """0.85 of 100 s hold 170 steps of 0.5 s, of 680 that are planned."""
    run = planned(tmp_path, steps=680, sample={"stages": ((0.5, 0.5), (0.8, 0.75))})
    steps = autotune.steps_to_come(run, limited_to(100.0), 0.5)
    assert steps == 170
    stages = autotune.with_fitted_stages(run, steps).config.sample.stages
    assert stages == ((0.125, 0.5), (pytest.approx(0.2), 0.75))
    assert autotune.steps_to_come(run, limited_to(1e4), 0.5) == autotune.steps_to_come(run, unlimited(), 0.5) == 680
    assert autotune.with_fitted_stages(run, 680).config == run.config
