"""The parts at toy sizes on a CPU; whole trainings are faked here, and run by the slow test of `test_gpu`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpus import arms, card, feed, gate, rungs, sliding, steps, target
from benchmarks.gpus.nets import NETS, batch_of, build, net_named, operations
from benchmarks.gpus.rungs import RUNGS, make_rung, make_step
from benchmarks.gpus.sheet import Sheet, new_sheet
from benchmarks.ladder.rungs import RUNGS as LADDER
from hasten.engine import capture
from tests.engine.test_capture import FakeStream

CPU = torch.device("cpu")


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sheet:
    monkeypatch.setattr("benchmarks.harness.busy_machine", lambda: 0.0)
    return new_sheet("some", tmp_path / "out", CPU, quick=True, seconds=300)


def rung(name: str) -> rungs.Rung:
    return next(rung for rung in RUNGS if rung.name == name)


def test_products_count_their_operations(sheet: Sheet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "turns", lambda calls, *_, **__: {name: [2.0] for name in calls if call_one(calls[name])})
    result = card.products(sheet)
    assert result["product/fp32_TFLOP/s"] == [pytest.approx(2 * 256**3 / 2e-3 / 1e12)]
    assert set(result) == {"product/fp32_TFLOP/s", "product/bf16_TFLOP/s"}


def call_one(call: Any) -> bool:
    return bool(torch.isfinite(call()).all())


def test_copies_and_convolutions_are_measured(sheet: Sheet) -> None:
    assert set(card.copies(sheet)) == {"copy/device_GB/s"}
    card.convolutions(sheet, 4, 6)
    assert len(sheet.results) == 4
    assert all(len(values) == 2 and min(values) > 0 for values in sheet.results.values())


def test_facts_without_a_card_say_so() -> None:
    assert card.torch_facts(CPU)["torch"] == torch.__version__
    assert card.card_facts()
    assert isinstance(card.card_state(), list)


def test_mlperfs_network_is_as_large_and_costs_what_it_does() -> None:
    net = NETS["mlperf"]
    network = build(net, CPU)
    widths = [module.out_channels for module in network.modules() if isinstance(module, torch.nn.Conv3d)]
    assert widths[:2] == [32, 32]
    assert max(widths) == 320
    assert 30e6 < sum(weight.numel() for weight in network.parameters()) < 33e6
    assert 2.5e12 < operations(net) < 3.2e12


@pytest.mark.parametrize("name", NETS)
def test_toy_networks_have_the_parts_of_the_large_ones(name: str) -> None:
    small = net_named(name, quick=True)
    assert small.network.name == NETS[name].network.name
    assert small.network.norm == NETS[name].network.norm
    image, label = batch_of(small, 2, CPU)
    assert build(small, CPU)(image).shape == (2, small.num_classes, *image.shape[2:])
    assert label.max() < small.num_classes


def test_operations_of_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    network = torch.nn.Conv3d(1, 4, 3, padding=1, bias=False)
    monkeypatch.setattr("benchmarks.gpus.nets.build", lambda net, device: network)
    net = net_named("spleen", quick=True)
    # Forward and the weights' gradient; the image wants none.
    assert operations(net) == 2 * 2 * 4 * 27 * net.side**3


@pytest.mark.parametrize("name", [rung.name for rung in RUNGS if not rung.captured and not rung.compiled])
def test_every_rung_trains(name: str) -> None:
    net = net_named("spleen", quick=True)
    ready = make_rung(rung(name), net, 2, CPU, quick=True)
    ready.step()
    ready.step()
    if rung(name).fused:
        assert "norms" in ready.note


def test_rungs_agree_in_float32() -> None:
    """Surgery and Hasten's step change how it is computed, not what."""
    net = net_named("mlperf", quick=True)
    results = []
    for own, fused in ((False, False), (True, True)):
        made = rungs.Rung(name="x", own=own, fused=fused, channels_last=fused)
        network, _ = rungs._network(made, net, CPU)
        image, label = batch_of(net, 2, CPU)
        if own:
            step = rungs._own(made, network, CPU)
            results.append(float(step.forward(image, label).detach()))
        else:
            loss = rungs.DiceCELoss(include_background=False, to_onehot_y=True, softmax=True, batch=True)
            results.append(float(loss(network(image), label).detach()))
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_a_captured_rung_needs_a_gpu_and_is_captured_by_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_named("mlperf", quick=True)
    with pytest.raises(RuntimeError, match="no CUDA device"):
        make_rung(rung("hasten captured"), net, 2, CPU)
    monkeypatch.setattr(capture, "SideStream", FakeStream)
    # In float32: on a CPU bf16 is unsound on maps as small as the toy network's.
    step, batch = make_step(rungs.Rung(name="x", own=True, fused=True), net, 2, CPU)
    before = [weight.clone() for weight in step.network.parameters()]
    ready = rungs._captured(step, *batch, "")
    ready.step()
    assert "as one CUDA graph" in ready.note
    assert any(not torch.equal(old, new) for old, new in zip(before, step.network.parameters(), strict=True))
    ready.close()
    monkeypatch.setattr(FakeStream, "spoil", 3.0)
    with pytest.raises(RuntimeError, match="the graph's loss"):
        rungs._captured(*make_again(net))


def make_again(net: Any) -> tuple[Any, ...]:
    step, batch = make_step(rungs.Rung(name="x", own=True), net, 2, CPU)
    return step, *batch, ""


class TestLadder:
    def test_a_rung_is_kept_with_its_pace(self, sheet: Sheet) -> None:
        ladder = steps.Ladder("mlperf", net_named("mlperf", quick=True), sheet, {"fp32": 1.0})
        assert ladder.size == 2
        ladder.climb(next(rung for rung in RUNGS if rung.name == "eager fp32"))
        result = sheet.results
        pace, milliseconds = result["mlperf/eager fp32_patches/s"], result["mlperf/eager fp32_ms"]
        assert pace == [pytest.approx(2e3 / value) for value in milliseconds]
        assert result["mlperf/eager fp32_share_of_product"] == [pytest.approx(v * ladder.work / 1e12) for v in pace]

    def test_the_fastest_rung_is_claimed_and_tried_with_twice_the_patches(
        self, sheet: Sheet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ladder = steps.Ladder("mlperf", net_named("mlperf", quick=True), sheet, {})
        ladder.size, ladder.pace = 2, {"eager fp32": 10.0, "hasten": 80.0}
        tried: list[tuple[str, int | None]] = []
        monkeypatch.setattr(ladder, "climb", lambda rung, size=None: tried.append((rung.name, size)))
        ladder.finish()
        assert tried == [("best, larger batch", 4)]
        assert [claim.value for claim in sheet.claims] == [8.0, 80.0]
        assert all(claim.holds for claim in sheet.claims)

    def test_the_anchor_is_that_of_the_card(self) -> None:
        assert steps.anchor_of("NVIDIA H100 80GB HBM3") == ("H100", 72.5)
        assert steps.anchor_of("NVIDIA B300") == ("H200", 76.3)


def test_sliding_windows_agree_with_the_network_alone_in_number(sheet: Sheet) -> None:
    sliding.volume(sheet, "fp32")
    assert {name.split(",")[0] for name in sheet.results} == {"network", *sliding.TIMED}
    assert sheet.settings["fp32"]["windows"] == 8
    assert "fp32: memory" in sheet.left_out


# Whole trainings


def run_of(times: dict[float, float], *, stopped: str = "target", total: float = 50.0) -> dict[str, Any]:
    """An arm's result: seconds by the Dice of each validation."""
    curve = [
        {"seconds": seconds, "dice": dice, "iou": dice, "dice_with_background": dice, "epoch": 1.0}
        for dice, seconds in times.items()
    ]
    return {
        "curve": curve, "best": max(times, default=None), "stopped": stopped, "seconds": {"total": total},
        "seconds_per_epoch": [1.0], "settings": {"metric": "dice", "max_seconds": 90.0},
    }  # fmt: skip


def test_the_aim_is_of_medians_over_the_seeds() -> None:
    ours = [run_of({0.5: 5.0, 0.95: seconds}) for seconds in (9.0, 10.0, 30.0)]
    theirs = [run_of({0.94: seconds}) for seconds in (40.0, 50.0, 60.0)]
    result = target.claim({"hasten": ours, "algorithms": theirs}, 0.94)
    assert (result.value, result.holds) == (5.0, True)


def test_a_peer_that_was_stopped_gives_a_bound_and_ours_none() -> None:
    stopped = [run_of({0.5: 80.0}, stopped="max_seconds")]
    ours = [run_of({0.94: 10.0})]
    bound = target.claim({"hasten": ours, "algorithms": stopped}, 0.94)
    assert bound.value == 9.0
    assert "at least" in bound.name
    missed = target.claim({"hasten": stopped, "algorithms": ours}, 0.94)
    assert missed.value is None
    assert not missed.holds
    assert target.claim({"hasten": ours, "algorithms": []}, 0.94).value is None


def test_the_gate_is_passed_only_if_every_run_passes() -> None:
    theirs = [run_of({0.96: 40.0}), run_of({0.96: 60.0})]
    passed = gate.claims({"hasten": [run_of({0.96: 20.0}), run_of({0.97: 30.0})], "monai": theirs}, 0.95)
    assert [claim.value for claim in passed] == [30.0, 2.0]
    failed = gate.claims({"hasten": [run_of({0.96: 20.0}), run_of({0.9: 30.0})], "monai": theirs}, 0.95)
    assert not any(claim.holds for claim in failed)


def test_series_tell_bounds_from_times() -> None:
    result = arms.series_of("x", [run_of({0.94: 10.0}), run_of({0.5: 80.0}, stopped="max_seconds")], 0.94)
    assert result["x, to 0.94_s"] == [10.0]
    assert result["x, to 0.94, at least_s"] == [90.0]
    assert result["x, best"] == [0.94, 0.5]


def test_arms_take_turns_for_as_many_seeds_as_fit(sheet: Sheet, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet.quick = False
    trained: list[tuple[str, str]] = []

    def trains(own: Sheet, what: str, module: str, flags: list[str], out: Path, *, seconds: float) -> dict[str, Any]:
        rung = flags[flags.index("--rung") + 1] if "--rung" in flags else "hasten"
        trained.append((rung, flags[flags.index("--seed") + 1]))
        own.ends -= 60
        return run_of({0.95: 10.0 if rung == "hasten" else 50.0}, total=60.0)

    monkeypatch.setattr(target, "run_arm", trains)
    small = {**target.TWIN, **{key: target.QUICK[key] for key in ("shape", "spacing", "run")}, "cases": 11}
    monkeypatch.setattr(target, "TWIN", small)
    target.measure(sheet)
    arms_run = [name for name, _ in trained]
    assert arms_run[:2] == ["hasten", "algorithms"]
    assert [seed for _, seed in trained[:4]] == ["0", "0", "1", "1"]
    assert sheet.claims[0].value == 5.0
    assert any(name.startswith("seed 2") for name in sheet.left_out)


def test_an_arm_that_fails_or_overstays_is_told(sheet: Sheet, tmp_path: Path) -> None:
    script = tmp_path / "arm_for_test.py"
    script.write_text(
        "import json, sys, time\nout = sys.argv[-1]\n"
        "if 'fail' in sys.argv: raise SystemExit('no such file')\n"
        "if 'write' in sys.argv: open(out, 'w').write(json.dumps({'stopped': None}))\n"
        "time.sleep(30)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        module = "arm_for_test"
        assert arms.run_arm(sheet, "a", module, ["fail"], tmp_path / "a.json", seconds=20) == {}
        assert arms.run_arm(sheet, "b", module, ["sleep"], tmp_path / "b.json", seconds=1) == {}
        assert arms.run_arm(sheet, "c", module, ["write"], tmp_path / "c.json", seconds=3) == {"stopped": "max_seconds"}
    assert "no such file" in sheet.left_out["a"]
    assert "no validation" in sheet.left_out["b"]
    assert "c" not in sheet.left_out


def test_the_arms_that_are_compared_are_the_ladders() -> None:
    names = {rung.name: rung.module for rung in LADDER}
    assert names[target.OURS] == "hasten"
    assert names[target.THEIRS] == "monai"
    assert names[target.BETWEEN] == "hasten"


def test_the_gates_task_is_that_of_monais_test(tmp_path: Path) -> None:
    quick = gate._quick() | {"run": {}, "peer": None}
    task, data = arms.twin_task("synthetic41", tmp_path, quick=quick)
    assert task.target == 0.95
    assert task.run["train"]["steps"] == 40
    assert (task.peer.cases, task.peer.crops) == (4, 4)
    assert tuple(task.network.channels or ()) == (16, 32, 64, 128, 256)
    assert len(json.loads((data / "dataset.json").read_text())["training"]) == 6


def test_the_feeds_overhead_is_over_its_own_floor(sheet: Sheet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "turns", lambda calls, *_, **__: {name: [TIMES[name]] for name in run_each(calls)})
    feed.workload(sheet, "mlperf", feed.QUICK["mlperf"])
    result = sheet.results
    assert result["mlperf/overhead, eager"] == [pytest.approx(1.02)]
    assert result["mlperf/batch, monai beside hasten eager_ms"] == [60.0]
    values = [(claim.value, claim.holds) for claim in sheet.claims]
    assert values == [(1.02, True), (6.0, True), (None, False)]
    assert list(sheet.left_out) == ["mlperf: waits"]


def test_the_claims_are_the_compiled_programs_where_there_is_one(sheet: Sheet) -> None:
    sheet.keep({f"spleen/overhead, {kind}": [value] for kind, value in (("eager", 1.2), ("compiled", 1.01))})
    sheet.keep({f"spleen/waits a batch, hasten {kind}": [value, 0] for kind, value in (("eager", 3), ("compiled", 0))})
    feed.claims(sheet, "spleen")
    assert [(claim.value, claim.holds) for claim in sheet.claims] == [(1.01, True), (None, False), (0, True)]


TIMES = {"monai": 60.0, "hasten eager": 10.0, "floor": 100.0, "fed": 102.0}


def run_each(calls: dict[str, Any]) -> list[str]:
    for call in calls.values():
        call()
    return list(calls)
