"""The step on a CUDA device: no value is read in it, TF32 is set and given back, and a CUDA graph trains as it does."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from hasten.augment.chain import Batch
from hasten.augment.make_program import program_of
from hasten.augment.program import Segment
from hasten.config.schema import LossConfig, TrainConfig
from hasten.nets.build import build_loss
from hasten.nets.surgery.operate import operate
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer
from hasten.training.capture import captured_run, why_no_batch, why_not
from hasten.training.step import TrainStep
from hasten.training.update import Update
from tests.augment.stores import random_store, segment_of
from tests.gpu.graphs import no_sync
from tests.training.test_step import network_of

STEPS = 10
OPTIMIZERS = ("muon", "adamw", "sgd", "novograd", "lamb", "nvlamb", "lars")


def segment() -> Segment:
    store = random_store([(20, 24, 28), (32, 16, 24)], dtype="float16").to("cuda")
    return segment_of(
        store, (16, 16, 16), seed=3, foreground_prob=0.5, affine_prob=0.5, binding={"device": "cuda"}
    )  # fmt: skip


def take(step: TrainStep, batch: Batch, index: int) -> Tensor:
    return step(batch["image"], batch["label"], index)


def step_of(optimizer: str = "muon", precision: str = "fp32", dropout: float = 0.0) -> TrainStep:
    network = network_of(3, dropout).cuda()
    # As in a run: the gradient of a bias before a norm is nothing but rounding, which NovoGrad makes much of.
    operate(network, torch.randn(2, 1, 16, 16, 16, device="cuda"), fuse=False)
    config = TrainConfig(optimizer=optimizer, learning_rate=1e-3)  # type: ignore[arg-type]
    update = Update(
        weights=network,
        optimizer=build_optimizer(network, config),
        schedule=lambda index: 1e-3 / (1 + index),
        average=average_of(network),
        average_decay=0.9,
        clip_norm=1.0,
    )
    return TrainStep(
        network=network.train(),
        loss=build_loss(LossConfig()),
        update=update,
        precision=precision,
        device=torch.device("cuda"),
    )


def weights(module: nn.Module | None) -> list[Tensor]:
    assert module is not None
    return [weight.detach() for weight in module.parameters() if weight.ndim > 1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_step_reads_no_value(optimizer: str, precision: str) -> None:
    step, batches = step_of(optimizer, precision), segment()
    take(step, batches(0), 0)
    batch = batches(1)
    with no_sync():
        take(step, batch, 1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_train_as_plain_ones(optimizer: str, precision: str) -> None:
    plain, batches = step_of(optimizer, precision), segment()
    wanted = [take(plain, batches(index), index) for index in range(STEPS)]
    captured = captured_run(step_of(optimizer, precision), segment())
    assert why_not(captured.step) is None
    assert why_no_batch(program_of(segment())) is None
    results = [captured(index) for index in range(STEPS)]
    assert captured.on, captured.reason
    torch.testing.assert_close(torch.stack(results), torch.stack(wanted), rtol=2e-2, atol=2e-3)
    for left, right in zip(weights(captured.step.update.average), weights(plain.update.average), strict=True):
        assert (left - right).norm() <= 0.05 * right.norm()
    captured.close()
    captured(STEPS)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replayed_dropout_draws_the_masks_of_the_plain_step(precision: str) -> None:
    plain, batches = step_of("adamw", precision, dropout=0.3), segment()
    torch.manual_seed(7)
    wanted = [take(plain, batches(index), index) for index in range(STEPS)]
    state = torch.cuda.get_rng_state()
    captured = captured_run(step_of("adamw", precision, dropout=0.3), segment())
    torch.manual_seed(7)
    results = [captured(index) for index in range(STEPS)]
    assert captured.on, captured.reason
    torch.testing.assert_close(torch.stack(results), torch.stack(wanted), rtol=2e-2, atol=2e-3)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    captured.close()
    captured(STEPS)


def test_a_thread_that_allocates_breaks_no_capture() -> None:
    over = threading.Event()
    done = 0

    def allocate() -> None:
        nonlocal done
        stream = torch.cuda.Stream()
        while not over.is_set():
            with torch.cuda.stream(stream):
                # Each is larger than the one before: the allocator has to ask the driver.
                block = torch.ones((1 + done % 8) << 20, device="cuda")
                torch.empty_like(block, device="cpu", pin_memory=True).copy_(block, non_blocking=True)
            stream.synchronize()
            del block
            torch.cuda.empty_cache()
            done += 1

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        captured = captured_run(step_of("adamw"), segment())
        results = [captured(index) for index in range(STEPS)]
    finally:
        over.set()
        thread.join()
    assert done > 0
    assert captured.on, captured.reason
    plain, batches = step_of("adamw"), segment()
    wanted = [take(plain, batches(index), index) for index in range(STEPS)]
    torch.testing.assert_close(torch.stack(results), torch.stack(wanted), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("what", ["a value is read", "memory is short"])
def test_after_a_capture_that_fails_the_run_goes_on(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a dropout, whose generator took part, and with no memory lost."""
    step = step_of("adamw", dropout=0.3)
    captured, whole = captured_run(step, segment()), TrainStep.forward

    def forward(self: TrainStep, image: Tensor, label: Tensor) -> Tensor:
        loss = whole(self, image, label)
        if torch.cuda.is_current_stream_capturing():
            if what == "memory is short":
                torch.empty(1 << 50, device="cuda")
            loss.item()
        return loss

    monkeypatch.setattr(TrainStep, "forward", forward)
    stream = torch.cuda.current_stream()
    torch.manual_seed(7)
    results = [captured(index) for index in range(STEPS)]
    assert not captured.on
    assert captured.reason.startswith("capturing failed: ")
    assert torch.cuda.current_stream() == stream
    plain, batches = step_of("adamw", dropout=0.3), segment()
    torch.manual_seed(7)
    wanted = [take(plain, batches(index), index) for index in range(STEPS)]
    torch.testing.assert_close(torch.stack(results), torch.stack(wanted), rtol=2e-2, atol=2e-3)
    block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (64 << 20)
