"""The model: what a training's step and epoch take on W workers, part by part.

step  = slowest worker's compute + the part of the gradients' all-reduce that the backward pass does not hide
        (or the data, where making a batch takes longer than both)
epoch = steps * step + validation / W + what doesn't shrink

An all-reduce costs a latency for each message and a time for each byte (alpha-beta model).
Ring and tree of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005); double binary trees, which use the whole bandwidth, of S. Jeaugey, "Massively Scale Your Deep Learning Training
with NCCL 2.4" (2019); the bandwidth's meaning as in nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

from hasten.study.scale.predict.links import Link, Network

Mode = Literal["weak", "strong"]
"""`weak`: each worker keeps its batch, so an epoch has 1/W of the steps. `strong`: the batch is dealt out."""

DDP_BUCKET = 25 * 2**20
"""Bytes of gradients that DistributedDataParallel sends together by default."""

COMPUTE = "compute"
FIXED, SPREAD, IMBALANCE = "fixed part of the step", "spread of the steps", "uneven parts"
COMMUNICATION, DATA = "communication", "data"
VALIDATION, ONCE, TOO_FEW = "validation", "fixed costs", "too few samples"
_FREE = 0.02
"""A loss below this share is ignored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training as one worker runs it. Seconds are those of this worker alone."""

    compute_s: float
    """Seconds of a step on one worker's batch: forward, backward and optimizer, without data and communication."""
    gradient_bytes: float
    """Bytes that a step all-reduces, in the type they travel in."""
    fixed_s: float = 0.0
    """Part of `compute_s` that a smaller share of the batch doesn't shorten (strong mode)."""
    spread: float = 0.0
    """Standard deviation of a step over its mean: all wait for the slowest of W draws."""
    imbalance: float = 0.0
    """Largest part of the data over the mean part, less 1: the work of the fullest worker beyond the mean."""
    backward_share: float = 2 / 3
    """Share of `compute_s` during which gradients become ready, at an even rate."""
    bucket_bytes: float = DDP_BUCKET
    overlap: float = 1.0
    """Share of the communication that could be hidden by the backward pass and is, 0 to 1."""
    data_s: float = 0.0
    """Seconds for making a worker's batch, in parallel with the step."""
    steps: float | None = None
    """Steps of an epoch on one worker; None: an epoch counts as one step, where only whole epochs are known."""
    validation_s: float = 0.0
    """Seconds of an epoch's validation on one worker; the cases are dealt out."""
    checkpoint_s: float = 0.0
    """Seconds of an epoch in which all wait for checkpoints."""
    startup_s: float = 0.0
    """Seconds before the first step, of the whole training."""
    epochs: float | None = None
    """Epochs of the training, over which the start-up is spread; None leaves it out."""

    def __post_init__(self) -> None:
        assert 0 <= self.fixed_s <= self.compute_s
        assert self.compute_s > 0
        assert 0 <= self.overlap <= 1
        assert 0 < self.backward_share <= 1
        assert self.bucket_bytes > 0
        assert self.steps is None or self.steps > 0
        rest = (self.gradient_bytes, self.spread, self.imbalance, self.data_s, self.validation_s, self.checkpoint_s)
        assert all(value >= 0 for value in (*rest, self.startup_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The model's prediction for one count of workers."""

    workers: int
    step_s: float
    epoch_s: float
    efficiency: float
    """Speed-up over one worker, over the workers: 1 is ideal."""
    communication_share: float
    """Share of a step spent waiting for gradients."""
    losses: Mapping[str, float]
    """Share of the workers' time that each cause takes beyond an ideal speed-up; with the efficiency they add up to 1.

    A training that waits for its data, or validates, on one worker too, loses nothing by that alone.
    """

    @property
    def limit(self) -> str:
        """The cause that costs most; `compute` if none costs much."""
        name = max(self.losses, key=lambda cause: self.losses[cause])
        return name if self.losses[name] >= _FREE else COMPUTE


@dataclass(frozen=True, kw_only=True, slots=True)
class _Epoch:
    """Seconds of an epoch by cause."""

    parts: dict[str, float]
    step_s: float
    exposed_s: float

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())


def ring_s(num_bytes: float, workers: int, link: Link) -> float:
    """Reduce-scatter, then all-gather, around a ring: each worker sends 2 (W - 1) messages of 1/W of the bytes."""
    hops = 2 * (workers - 1)
    return hops * link.latency_s + hops / workers * num_bytes / link.bytes_per_s


def tree_s(num_bytes: float, workers: int, link: Link) -> float:
    """Time of two binary trees, up and down, with half the bytes each, in pieces: fewer messages after one another."""
    if workers == 1:
        return 0.0
    return 2 * math.ceil(math.log2(workers)) * link.latency_s + 2 * num_bytes / link.bytes_per_s


def flat_s(num_bytes: float, workers: int, link: Link) -> float:
    """The better of ring and tree, as NCCL chooses; the ring's where there are no trees."""
    ring = ring_s(num_bytes, workers, link)
    return min(ring, tree_s(num_bytes, workers, link)) if link.trees else ring


def all_reduce_s(num_bytes: float, workers: int, network: Network) -> float:
    """Seconds until each of `workers` has the sum of everyone's `num_bytes`; whole nodes are filled first.

    Over several nodes: one ring or tree through all workers, which the nodes' adapters slow down, or by level: within
    each node, then between the nodes with 1/per_node of the bytes a worker, then within; whichever is less.
    """
    if workers == 1:
        return 0.0
    if network.per_node == 1:
        return flat_s(num_bytes, workers, _node(network))
    assert network.inside is not None
    if workers <= network.per_node:
        return flat_s(num_bytes, workers, network.inside)
    nodes = math.ceil(workers / network.per_node)
    node = _node(network)
    slower = replace(node, bytes_per_s=min(node.bytes_per_s, network.inside.bytes_per_s))
    # The workers of a node send their parts through its adapters at once: as long as all the bytes take.
    levels = ring_s(num_bytes, network.per_node, network.inside) + flat_s(num_bytes, nodes, node)
    return min(levels, flat_s(num_bytes, workers, slower))


def _node(network: Network) -> Link:
    return replace(network.between, bytes_per_s=network.adapters * network.between.bytes_per_s)


@lru_cache(maxsize=1024)
def expected_maximum(workers: int) -> float:
    """Mean of the largest of `workers` standard normal draws: 0 for one, 1.42 for 8, 3.2 for 1024."""
    if workers == 1:
        return 0.0
    # The mean of its quantile function; the tails matter little.
    normal, points = NormalDist(), 2000
    return sum(normal.inv_cdf(((k + 0.5) / points) ** (1 / workers)) for k in range(points)) / points


def exposed_s(training: Training, workers: int, network: Network, backward_s: float) -> float:
    """Seconds of a step's all-reduces that remain after the backward pass.

    Buckets are sent one after another, each when it is full. The last one is full at the end of the backward pass, so
    it is never hidden: pytorch.org/docs/stable/notes/ddp.html.
    """
    if workers == 1 or training.gradient_bytes == 0:
        return 0.0
    count = max(1, math.ceil(training.gradient_bytes / training.bucket_bytes))
    each = all_reduce_s(training.gradient_bytes / count, workers, network)
    # Of equal buckets, filled at an even rate, either all wait for the one before, or none does.
    beside = max(each, backward_s / count + count * each - backward_s)
    return training.overlap * beside + (1 - training.overlap) * count * each


def epoch_of(training: Training, workers: int, network: Network, mode: Mode) -> _Epoch:
    share = 1.0 if mode == "weak" else 1 / workers
    ideal = training.compute_s * share
    fixed = training.fixed_s * (1 - share)
    slow = training.spread * expected_maximum(workers) * (ideal + fixed)
    uneven = training.imbalance * (ideal + fixed) if workers > 1 else 0.0
    backward = training.backward_share * (ideal + fixed)
    exposed = exposed_s(training, workers, network, backward)
    busy = ideal + fixed + slow + uneven + exposed
    waits = max(0.0, training.data_s * share - busy)
    step = busy + waits
    whole = training.steps if training.steps is not None else 1.0
    count = whole if mode == "strong" else whole / workers
    missing = max(0.0, 1 - count) if mode == "weak" and training.steps is not None else 0.0
    once = training.startup_s / training.epochs if training.epochs else 0.0
    parts = {
        COMPUTE: count * ideal, FIXED: count * fixed, SPREAD: count * slow, IMBALANCE: count * uneven,
        COMMUNICATION: count * exposed, DATA: count * waits, TOO_FEW: missing * step,
        VALIDATION: training.validation_s / workers, ONCE: training.checkpoint_s + once,
    }  # fmt: skip
    return _Epoch(parts=parts, step_s=step, exposed_s=exposed)


def predict(training: Training, workers: int, network: Network, mode: Mode = "weak") -> Prediction:
    """The step, the epoch and the efficiency on `workers`, which is 1 or more."""
    assert workers >= 1
    alone, epoch = epoch_of(training, 1, network, mode), epoch_of(training, workers, network, mode)
    worker_s = workers * epoch.total_s
    losses = {
        name: (workers * epoch.parts[name] - alone.parts[name]) / worker_s for name in epoch.parts if name != COMPUTE
    }
    return Prediction(
        workers=workers,
        step_s=epoch.step_s,
        epoch_s=epoch.total_s,
        efficiency=alone.total_s / worker_s,
        communication_share=epoch.exposed_s / epoch.step_s,
        losses=losses,
    )
