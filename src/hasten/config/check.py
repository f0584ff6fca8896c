"""Checks of a RunConfig: the types and ranges of its fields, and the rules among them that no type can express."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import get_args

from hasten.config import schema
from hasten.config.augment import augment_mistakes
from hasten.config.networks import is_own, name_mistakes
from hasten.config.patterns import as_lists
from hasten.config.regions import region_mistakes
from hasten.config.scalings import window_mistakes
from hasten.config.schema import LossConfig, LossName, RunConfig, Stages
from hasten.config.size import parse_duration, parse_size
from hasten.config.url import is_url, shown
from hasten.config.user_code import is_user_code, name_mistake, own_mistakes
from hasten.config.validate import checked_as

_DAY = 86_400
_COARSEST = 10_000
"""Largest size of a voxel in mm."""
_SMALLEST = 0.01
"""Smallest zoom factor: a patch is cut from a region that is larger by its inverse, along each axis."""
_STRONGEST = 1_000_000
"""Largest zoom factor."""


def check_run(config: RunConfig, *, code_follows: bool = False) -> list[str]:
    """Every mistake as "dotted.path: what is wrong (given ...)"; empty if there is none. None (undecided) passes.

    code_follows: network and loss, if they are not named, may still become code of the user's, for which `args` are.
    """
    ranges = [message for _, message in checked_as(RunConfig, as_lists(dataclasses.asdict(config)))[1]]
    return ranges or [
        *_data(config.data),
        *_prepare(config.prepare),
        *_cache(config.cache),
        *_sample(config.sample),
        *augment_mistakes(config.augment, config.sample, config.prepare),
        *_network(config.network, code_follows=code_follows),
        *_loss(config.loss, code_follows=code_follows),
        *_train(config.train, config.sample.batch_size),
        *_infer(config.infer),
        *check_observe(config.observe),
        *_distribute(config.distribute),
    ]


def _data(data: schema.DataConfig) -> Iterator[str]:
    split = data.split
    at = "data.split"
    if split.by not in ("list", None) and split.validation:
        yield f"{at}.validation: is used only with {at}.by: list (given by: {split.by}); set that or leave it out"
    first, last = split.train_range
    if not 0 <= first < last <= 1:
        yield wrong(f"{at}.train_range", "must be [from, to] with 0 <= from < to <= 1", split.train_range)
    if data.regions:
        yield from (f"data.regions: {mistake}" for mistake in region_mistakes(data.regions, data.region_values or {}))


def _prepare(prepare: schema.PrepareConfig) -> Iterator[str]:
    code = prepare.orientation
    if code is not None and (len(code) != 3 or any(len(set(code) & set(pair)) != 1 for pair in ("RL", "AP", "SI"))):
        yield wrong(
            "prepare.orientation", "must be three axis codes, one of R/L, A/P and S/I each (as RAS), or null", code
        )
    spacing = prepare.spacing
    if spacing is not None and spacing != (0, 0, 0) and not all(0 < mm <= _COARSEST for mm in spacing):
        rule = f"must be three numbers of mm (D, H, W), above 0 and at most {_COARSEST}, or [0, 0, 0]"
        yield wrong("prepare.spacing", rule, spacing)
    yield from window_mistakes(prepare)


def _cache(cache: schema.CacheConfig) -> Iterator[str]:
    if cache.dir and is_url(cache.dir):
        yield wrong("cache.dir", "must be a local folder", shown(cache.dir))
    for name in ("device", "ram"):
        budget = getattr(cache, name)
        if budget == "auto":
            continue
        yield from check_size(f"cache.{name}", budget)
        if cache.home != "auto":
            yield f"cache.{name}: is used only with cache.home: auto (given: {cache.home}); leave one of them out"


def _sample(sample: schema.SampleConfig) -> Iterator[str]:
    yield from _stages("sample.stages", sample.stages or (), last=1.0)
    low, high = sample.scale_range or (1.0, 1.0)
    if not _SMALLEST <= low <= high <= _STRONGEST:
        rule = f"must be [low, high] with {_SMALLEST} <= low <= high <= {_STRONGEST}"
        yield wrong("sample.scale_range", rule, (low, high))


def _network(network: schema.NetworkConfig, *, code_follows: bool) -> Iterator[str]:
    yield from name_mistakes(network, code_follows=code_follows)
    if is_own(network):
        return
    sides = [side for kernel in network.kernel_size or () for side in kernel]
    if network.kernel_size == () or any(side < 1 or side % 2 == 0 for side in sides):
        yield wrong("network.kernel_size", "must be odd numbers [D, H, W] for each level", network.kernel_size)
    channels, strides = network.channels, network.strides
    if channels is not None and len(channels) < 2:
        yield wrong("network.channels", "must have 2 levels or more", channels)
    if channels is not None and strides is not None and len(strides) != len(channels) - 1:
        yield wrong("network.strides", f"must be one fewer than the {len(channels)} channels", strides)


def _loss(loss: LossConfig, *, code_follows: bool) -> Iterator[str]:
    if is_user_code(loss.name):
        of_built_in = ("include_background", "batch", "gamma", "alpha", "beta")
        given = [name for name in of_built_in if getattr(loss, name) != getattr(LossConfig(), name)]
        yield from own_mistakes("loss", "losses", loss, given)
        return
    if loss.name not in get_args(LossName):
        yield name_mistake("loss.name", loss.name, get_args(LossName))
    for name in ("args", "digest"):
        if getattr(loss, name) and not (code_follows and loss.name == LossConfig().name and name == "args"):
            yield f"loss.{name}: is for a loss of your own, and loss.name={loss.name} is built in; leave it out"
    if loss.alpha + loss.beta == 0:
        yield "loss.alpha, loss.beta: one of them must be above 0"


def _train(train: schema.TrainConfig, batch_size: int | None) -> Iterator[str]:
    if batch_size is not None and train.accumulate > batch_size >= 1:
        yield wrong("train.accumulate", f"must be at most sample.batch_size, {batch_size}", train.accumulate)
    yield from _stages("train.milestones", train.milestones, last=math.inf)
    yield from check_size("train.activations", train.activations, word="all")
    yield from _budget(train)
    yield from check_device(train.device)


def check_device(device: str) -> Iterator[str]:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        yield wrong("train.device", "must be auto, cpu, cuda or cuda:N", device)


def _budget(train: schema.TrainConfig) -> Iterator[str]:
    if train.budget is None:
        return
    try:
        seconds = parse_duration(train.budget)
    except ValueError:
        yield wrong("train.budget", "must be a time with a unit, such as 90s, 10min or 1h30m", train.budget)
        return
    if train.max_seconds is not None and train.max_seconds != seconds:
        budget = f"train.budget={train.budget} is {seconds:g} seconds"
        yield f"train.max_seconds: is {train.max_seconds:g}, and {budget}; give one of them"


def check_observe(observe: schema.ObserveConfig) -> Iterator[str]:
    every = observe.monitor_every
    if every != 0 and not 0.05 <= every <= _DAY:
        yield wrong("observe.monitor_every", f"must be 0 (off) or 0.05 to {_DAY} seconds", every)


def _distribute(distribute: schema.DistributeConfig) -> Iterator[str]:
    if distribute.exchange_every and not distribute.parts:
        yield "distribute.exchange_every: needs distribute.parts, as every process sees all cases without them"
    if distribute.strategy == "horovod" and distribute.gradients == "bf16":
        yield "distribute.gradients: horovod sends no bf16; use fp16 or fp32"


def _infer(infer: schema.InferConfig) -> Iterator[str]:
    if len(set(infer.flip_axes)) < len(infer.flip_axes):
        yield wrong("infer.flip_axes", "must name each axis once", infer.flip_axes)


def _stages(at: str, stages: Stages, *, last: float) -> Iterator[str]:
    shares = [share for share, _ in stages]
    if any(not 0 < share < 1 for share in shares) or shares != sorted(set(shares)):
        yield wrong(at, "must be [share, factor] pairs, the shares rising between 0 and 1", stages)
    if any(not 0 < factor <= last or factor == math.inf for _, factor in stages):
        limit = f"above 0 and at most {last:g}" if last < math.inf else "above 0"
        yield wrong(at, f"must have factors {limit}", stages)


def check_size(at: str, text: str, *, word: str = "auto") -> Iterator[str]:
    """word: what may be given in place of a size."""
    if text != word:
        try:
            parse_size(text)
        except ValueError:
            yield wrong(at, f"must be a size with a unit, such as 8GiB or 500MB, or {word}", text)


def wrong(at: str, rule: str, value: object) -> str:
    return f"{at}: {rule} (given {as_lists(value)})"
