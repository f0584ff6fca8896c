"""The data module under real Trainers, on tiny phantoms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from hasten.config.load import load_run
from hasten.feed.feed import Feed
from hasten.lightning import HastenDataModule
from hasten.report.read import read_run
from hasten.training.choose.batch_program import choose_program
from hasten.training.plan import plan_run
from hasten.training.prepare_cases import arena_of
from tests.lightning.parts import TINY, Small, phantoms, trainer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantoms(tmp_path_factory.mktemp("data") / "phantoms")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASTEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def sums(data: Path) -> list[float]:
    """What `Small` would see of Hasten's own feed."""
    planned = plan_run(load_run(overrides=[f"data.source={data}", "train.device=cpu", *TINY]))
    arena = arena_of(planned)
    program = choose_program(planned, arena)[0]
    return [
        float(batch["image"].double().sum() + 1e3 * batch["label"].double().sum()) for batch in Feed(program, last=20)
    ]


def module_of(data: Path, *settings: str, **options: int) -> HastenDataModule:
    return HastenDataModule(data, [*TINY, *settings], **options)


def test_a_fit_has_the_batches_of_the_feed_and_validates_whole_cases(data: Path, sums: list[float]) -> None:
    module, small = module_of(data), Small()
    assert (module.num_channels, module.num_classes) == (1, 2)
    runner = trainer(max_epochs=2)
    runner.fit(small, datamodule=module)
    assert runner.num_training_batches == 3  # 6 cases, 2 in a batch
    assert small.seen == sums[:6]
    held_out = [case.id for case in module.planned.validation]
    assert len(held_out) == 4
    assert small.validated == held_out * 2
    assert 0 <= float(runner.callback_metrics["val_dice"]) <= 1


def test_a_batch_and_a_case(data: Path) -> None:
    module = module_of(data, "train.device=cpu")
    batch = next(iter(module.train_dataloader()))
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "image": ((2, 1, 16, 16, 16), torch.float32),
        "label": ((2, 1, 16, 16, 16), torch.uint8),
    }
    case = next(iter(module.val_dataloader()))
    assert case["image"].shape[:2] == (1, 1)
    assert case["image"].shape == case["label"].shape
    assert case["image"].dtype == torch.float32
    assert case["id"] == [module.planned.validation[0].id]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_epochs": 2, "limit_train_batches": 2}, 4),
        ({"max_steps": 4}, 4),
        ({"max_steps": 2, "accumulate_grad_batches": 2}, 3),  # the last batch of an epoch makes a step of its own
        ({"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1}, 6),
        ({"fast_dev_run": True}, 1),
    ],
)
def test_every_batch_is_used_once_however_the_trainer_counts(
    data: Path, sums: list[float], options: dict[str, object], steps: int
) -> None:
    small = Small()
    trainer(**options).fit(small, datamodule=module_of(data))
    assert small.seen == sums[:steps]


def test_overfitting_sees_one_batch_again_and_again(data: Path, sums: list[float]) -> None:
    small = Small()
    trainer(max_epochs=3, overfit_batches=1, limit_val_batches=0).fit(small, datamodule=module_of(data))
    assert small.seen == sums[:1] * 3


@pytest.fixture(scope="module")
def saved(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The folder with a checkpoint of each step, and what `Small` saw."""
    folder, small = tmp_path_factory.mktemp("saved"), Small()
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer(max_steps=6, callbacks=[saving], enable_checkpointing=True, max_epochs=-1).fit(
        small, datamodule=module_of(data)
    )
    return folder, small.seen


@pytest.mark.parametrize("step", [1, 3])
def test_gone_on_with_from_any_step(data: Path, sums: list[float], saved: tuple[Path, list[float]], step: int) -> None:
    folder, seen = saved
    assert seen == sums[:6]
    again = Small()
    trainer(max_steps=8, max_epochs=-1).fit(
        again, datamodule=module_of(data), ckpt_path=str(folder / f"step={step}.ckpt"), weights_only=False
    )
    assert again.seen == sums[step:8]


def test_a_step_that_failed_is_made_again(data: Path, sums: list[float], tmp_path: Path) -> None:
    saving = OnExceptionCheckpoint(tmp_path, filename="pulled")
    with pytest.raises(RuntimeError, match="cable"):
        trainer(max_epochs=3, callbacks=[saving], enable_checkpointing=True).fit(
            Small(stop_at=5), datamodule=module_of(data)
        )
    again = Small()
    trainer(max_epochs=3).fit(
        again, datamodule=module_of(data), ckpt_path=str(tmp_path / "pulled.ckpt"), weights_only=False
    )
    assert again.seen == sums[4:9]


def test_a_checkpoint_of_other_batches_is_refused(data: Path, tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, filename="last")
    trainer(max_epochs=1, callbacks=[saving], enable_checkpointing=True).fit(Small(), datamodule=module_of(data))
    with pytest.raises(ValueError, match=r"train\.seed is not that of the checkpoint: 0 there, 1 here"):
        trainer(max_epochs=2).fit(
            Small(), datamodule=module_of(data, "train.seed=1"), ckpt_path=str(tmp_path / "last.ckpt"),
            weights_only=False,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.accumulate=2", "sample.batch_size=2"], r"train\.accumulate: .*accumulate_grad_batches"),
        (["sample.fit_batch=true"], r"sample\.fit_batch"),
        (["sample.stages=[[0.5, 0.5]]"], r"sample\.stages"),
        (["data.source=elsewhere"], r"data\.source is given twice"),
        (["sample.patches=[16, 16, 16]"], r"did you mean sample\.patch"),
    ],
)
def test_settings_that_lightning_decides(data: Path, settings: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HastenDataModule(data, settings)


def test_other_wrong_use(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps_per_epoch=0"):
        HastenDataModule(data, steps_per_epoch=0)
    with pytest.raises(ValueError, match=r"data\.source"):
        HastenDataModule(load_run())
    with pytest.raises(ValueError, match="a RunConfig is given whole"):
        HastenDataModule(load_run(overrides=[f"data.source={data}"]), ["train.seed=1"])
    with pytest.raises(ValueError, match="nowhere"):
        trainer(max_steps=1).fit(Small(), datamodule=HastenDataModule(tmp_path / "nowhere"))


def on_two_ranks(data: Path, out: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("ddp_run.py")
    path = os.pathsep.join([str(script.parents[2]), *sys.path])
    return subprocess.run(
        [sys.executable, str(script), str(data), str(out), *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_two_ranks_share_every_batch(data: Path, sums: list[float], tmp_path: Path) -> None:
    done = on_two_ranks(data, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    # Each made one of the two samples of a batch.
    assert [left + right for left, right in zip(ranks[0]["seen"], ranks[1]["seen"], strict=True)] == pytest.approx(
        sums[:6], rel=1e-12
    )
    assert all(left != right for left, right in zip(ranks[0]["seen"], ranks[1]["seen"], strict=True))
    held_out = [case.id for case in module_of(data).planned.validation]
    assert ranks[0]["validated"] + ranks[1]["validated"] == [*held_out[::2], *held_out[1::2]]
    run = read_run(tmp_path / "run")
    assert (run.status, run.steps) == ("finished", 6)
    assert run.machine is not None
    assert sorted(run.machine.ranks) == [0, 1]
    assert (tmp_path / "run/report.html").is_file()
