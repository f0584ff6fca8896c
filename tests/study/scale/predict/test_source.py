"""What logs and runs tell the model, and what they can't."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.study.scale.predict.fit import predictions
from hasten.study.scale.predict.links import LINKS, Network
from hasten.study.scale.predict.source import FIXED_SHARE, source_of
from tests.study.scale.predict.sources import WEIGHTS, write_logs, write_run

NETWORK = Network(between=LINKS["ib100"])
LOGS = Path(__file__).parents[5] / "shared" / "data" / "unet_scaling_logs"


def test_a_run_tells_its_step_its_spread_and_its_gradients(tmp_path: Path) -> None:
    settings = "distribute:\n  gradients: fp16\n  bucket_mb: 5\n"
    result = source_of(write_run(tmp_path / "run", jitter=0.01, settings=settings), network=NETWORK, mode="strong")
    training = result.fitted.best.training
    assert training.compute_s == pytest.approx(0.2, rel=0.011)
    # Means over 10 steps that differ by 2 % of 0.2 s, back and forth: independent steps differ by more.
    assert training.spread == pytest.approx(0.02 * 5**0.5, rel=0.05)
    assert training.gradient_bytes == 2 * WEIGHTS
    assert training.bucket_bytes == 5 * 2**20
    assert training.fixed_s == pytest.approx(FIXED_SHARE * training.compute_s)
    assert (training.steps, training.epochs) == (10, 9)
    assert training.validation_s == pytest.approx(0.5)
    assert training.checkpoint_s == pytest.approx(0.1)
    assert training.startup_s == pytest.approx(12 - 5.4)
    assert (result.batch, result.mode, result.epochs_only) == (64, "strong", False)
    assert len(result.fitted.draws) > 100


def test_a_wait_for_data_is_a_batch_that_takes_longer_than_the_step(tmp_path: Path) -> None:
    source = source_of(write_run(tmp_path / "run", wait_share=0.25), network=NETWORK, mode=None)
    training = source.fitted.best.training
    assert training.compute_s == pytest.approx(0.15)
    assert training.data_s == pytest.approx(0.2)
    assert source.mode == "weak"
    assert predictions(source.fitted, [1], "weak")[0].point.step_s == pytest.approx(0.2)


def test_what_a_run_lacks_is_named(tmp_path: Path) -> None:
    short = write_run(tmp_path / "short", lines=3)
    with pytest.raises(ValueError, match=r"short: its metrics.jsonl .*2 stretches .* 3 are needed"):
        source_of(short, network=NETWORK, mode=None)
    bare = write_run(tmp_path / "bare", checkpoint=False)
    with pytest.raises(ValueError, match=r"bare: has no checkpoint .* --gradient-mib"):
        source_of(bare, network=NETWORK, mode=None)
    given = source_of(bare, network=NETWORK, mode=None, gradient_mib=8.0)
    assert given.fitted.best.training.gradient_bytes == 8 * 2**20
    assumed = source_of(bare, network=None, mode=None, gradient_mib=8.0)
    assert assumed.fitted.notes[0] == "The network is assumed to be ib200; name yours by --link or --inter."
    named = source_of(bare, network=Network(between=LINKS["ib200"]), mode=None, gradient_mib=8.0)
    assert assumed.fitted.best == named.fitted.best
    with pytest.raises(ValueError, match="--strategy ddp: for logs of several"):
        source_of(bare, network=NETWORK, mode=None, strategy="ddp")
    (bare / "ranks").mkdir()
    (bare / "ranks" / "rank-1.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"bare: was trained by several processes"):
        source_of(bare, network=NETWORK, mode=None)
    with pytest.raises(ValueError, match="no such folder"):
        source_of(tmp_path / "nowhere", network=None, mode=None)


def test_logs_give_the_fastest_strategy_unless_another_is_named(tmp_path: Path) -> None:
    folder = write_logs(tmp_path / "logs", {1: 100.0, 2: 52.0, 4: 27.0})
    write_logs(folder, {1: 100.0, 2: 80.0, 4: 60.0}, strategy="hvd")
    result = source_of(folder, network=None, mode=None)
    assert (result.strategy, result.mode, result.epochs_only) == ("native", "weak", True)
    assert dict(result.measured) == {1: 100.0, 2: 52.0, 4: 27.0}
    assert any("horovod also there" in note for note in result.fitted.notes)
    assert any("up to 4 workers" in note for note in result.fitted.notes)
    assert source_of(folder, network=None, mode=None, strategy="horovod").measured[1] == (2, 80.0)
    with pytest.raises(ValueError, match=r"--strategy fsdp: .* there is horovod, native"):
        source_of(folder, network=None, mode=None, strategy="fsdp")
    with pytest.raises(ValueError, match="--epochs and --imbalance are for the folder of a run"):
        source_of(folder, network=NETWORK, mode=None)


def test_logs_of_two_counts_are_too_few(tmp_path: Path) -> None:
    folder = write_logs(tmp_path / "logs", {1: 100.0, 2: 52.0})
    with pytest.raises(ValueError, match=r"logs \(native\): epochs on 1, 2 workers .*few .*; 3 counts"):
        source_of(folder, network=None, mode=None)


@pytest.mark.skipif(not LOGS.is_dir(), reason="the 16 logs are not here")
def test_fourteen_gpus_are_predicted_from_four(tmp_path: Path) -> None:
    """Within 10 % for both strategies of the study, from logs of 1, 2 and 4 GPUs alone."""
    for strategy, infix in (("native", ""), ("horovod", "hvd_")):
        folder = tmp_path / strategy
        folder.mkdir()
        for workers in (1, 2, 4):
            name = f"log_{infix}{workers}.csv"
            (folder / name).write_bytes((LOGS / name).read_bytes())
        fitted = source_of(folder, network=None, mode=None).fitted
        whole = dict(source_of(LOGS, network=None, mode=None, strategy=strategy).measured)
        predicted = predictions(fitted, [14], "weak")[0].point.epoch_s
        assert predicted == pytest.approx(whole[14], rel=0.10)
