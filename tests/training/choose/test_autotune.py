from __future__ import annotations

import dataclasses
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
from hasten.runtime.measure import Probe
from hasten.runtime.variant import Variant, VariantTimes, variant_of
from hasten.training.choose import autotune
from hasten.training.choose.autotune import choose_compiled, choose_variant, probe_of
from hasten.training.choose.experiments import Experiments
from hasten.training.plan import RunPlan, augmentation_of

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
        crop_fraction=1.0,
    )
    config = RunConfig(
        cache=CacheConfig(dir=str(cache)),
        sample=SampleConfig(patch=patch, batch_size=batch_size, **(sample or {})),
        network=NetworkConfig(name="unet", channels=(2, 4, 4)[: len(strides) + 1], strides=strides),
        train=TrainConfig(**train),
    )
    config, decisions = decide_settings(fingerprint, config, num_train=2, accelerator=False)
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


MEASURED: dict[str, tuple[dict[str, Any], tuple[int, int], bool, list[str]]] = {
    "all open": ({}, (9, 0), True, ["fp32", "fp32 channels-last", "bf16", "bf16 channels-last"]),
    "no bf16": ({}, (9, 0), False, ["fp32", "fp32 channels-last"]),
    "precision set": ({"precision": "fp16"}, (9, 0), True, ["fp16", "fp16 channels-last"]),
    "format set": ({"channels_last": True}, (9, 0), True, ["fp32 channels-last", "bf16 channels-last"]),
    "a GPU": (
        {"device": "cuda"}, (9, 0), True,
        ["fp32", "bf16 channels-last fused"],
    ),
    "an old GPU": (
        {"device": "cuda", "channels_last": False, "fused_kernels": False}, (7, 5), True, ["fp32", "tf32", "bf16"],
    ),
}  # fmt: skip
"""Of each: settings, the GPU, whether the processor has bf16, and the variants that are timed."""


@pytest.mark.parametrize(("settings", "card", "has_bf16", "variants"), MEASURED.values(), ids=MEASURED)
def test_what_is_open_is_measured(
    tmp_path: Path, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any],
    card: tuple[int, int], has_bf16: bool, variants: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("hasten.runtime.variant.cpu_has_bf16", lambda: has_bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card)
    run = planned(tmp_path, **settings)
    network = build_network(run.config.network, num_channels=2, num_classes=2, spatial_dims=3)
    operate(network)
    result, _, engaged = choose_variant(run, network, unlimited())
    ((timed, _, allowed, memory, _),) = asked
    assert (timed, memory) == (network, tmp_path / "measured")
    assert [str(variant) for variant in allowed] == variants
    assert (result.precision, result.channels_last) == (allowed[-1].precision, allowed[-1].channels_last)
    assert {each.set_by for name, each in engaged.items() if name.replace("-", "_") in settings} <= {"user"}


@pytest.mark.parametrize(
    ("given", "measured", "kept"),
    [(None, False, None), (None, True, True), (False, False, False), (True, True, True), (True, False, None)],
)
def test_only_the_users_false_turns_all_kernels_off(
    tmp_path: Path, given: bool | None, measured: bool, kept: bool | None
) -> None:
    """It is what a run and its resumption ask `triton_as` by, and a network without kernels has a loss with them."""
    run = planned(tmp_path, device="cuda", fused_kernels=given)
    variant = Variant(precision="bf16", channels_last=measured, fused_kernels=measured)
    settled = autotune.with_variant(run, variant)
    assert settled.config.train.fused_kernels is kept
    assert variant_of(settled.config.train) == variant


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_is_set_is_not_measured(
    tmp_path: Path, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, precision: Any, last: bool
) -> None:
    built: list[Variant] = []
    monkeypatch.setattr(autotune, "build_kernels", lambda network, probe, allowed: built.extend(allowed))
    result, _, engaged = choose_variant(
        planned(tmp_path, precision=precision, channels_last=last, compile=False), nn.Identity(), unlimited()
    )
    assert asked == []
    assert (result.precision, result.channels_last) == (precision, last)
    assert built == [result]  # its kernels together, as where it is measured
    assert engaged == {
        "precision": Accelerator(precision != "fp32", "user", f"{precision}: {GIVEN}"),
        "channels-last": Accelerator(last, "user", GIVEN),
    }


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
