"""Checks of a RunConfig: the types and ranges of its fields, and the rules among them that no type can express."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

from hasten.config import schema
from hasten.config.augment import augment_mistakes
from hasten.config.networks import is_own, name_mistakes
from hasten.config.patterns import as_lists
from hasten.config.regions import region_mistakes
from hasten.config.resume_rules import flat
from hasten.config.scalings import window_mistakes
from hasten.config.schema import LossConfig, LossName, RunConfig, Stages
from hasten.config.size import parse_size
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


def _rising(stages: Stages) -> bool:
    shares = [share for share, _ in stages]
    return all(0 < share < 1 for share in shares) and shares == sorted(set(shares))


_PAIRS = "must be [share, factor] pairs, the shares rising between 0 and 1"
_SIZE = "must be a size with a unit, such as 8GiB or 500MB, or"
DEVICE_NAMES = "auto, cpu, cuda or cuda:N (NVIDIA and AMD), mps (Apple), xpu or xpu:N (Intel)"
DEVICE_PATTERN = r"auto|cpu|(cuda|mps|xpu)(:\d+)?"
_RULES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("data.split.train_range", "must be [from, to] with 0 <= from < to <= 1", lambda at: 0 <= at[0] < at[1] <= 1),
    (
        "prepare.orientation",
        "must be three axis codes, one of R/L, A/P and S/I each (as RAS), or null",
        lambda codes: len(codes) == 3 and all(len(set(codes) & set(pair)) == 1 for pair in ("RL", "AP", "SI")),
    ),
    (
        "prepare.spacing",
        f"must be three numbers of mm (D, H, W), above 0 and at most {_COARSEST}, or [0, 0, 0]",
        lambda sides: sides == (0, 0, 0) or all(0 < mm <= _COARSEST for mm in sides),
    ),
    ("cache.device", f"{_SIZE} auto", lambda text: text == "auto" or parse_size(text) >= 0),
    ("cache.ram", f"{_SIZE} auto", lambda text: text == "auto" or parse_size(text) >= 0),
    (
        "sample.scale_range",
        f"must be [low, high] with {_SMALLEST} <= low <= high <= {_STRONGEST}",
        lambda ends: _SMALLEST <= ends[0] <= ends[1] <= _STRONGEST,
    ),
    ("sample.stages", _PAIRS, _rising),
    ("sample.stages", "must have factors above 0 and at most 1", lambda pairs: all(0 < by <= 1 for _, by in pairs)),
    ("train.milestones", _PAIRS, _rising),
    ("train.milestones", "must have factors above 0", lambda pairs: all(by > 0 for _, by in pairs)),
    ("train.activations", f"{_SIZE} all", lambda text: text == "all" or parse_size(text) >= 0),
    (
        "train.device",
        f"must be {DEVICE_NAMES}",
        lambda name: bool(re.fullmatch(DEVICE_PATTERN, name)),
    ),
    ("infer.flip_axes", "must name each axis once", lambda axes: len(set(axes)) == len(axes)),
    (
        "observe.monitor_every",
        f"must be 0 (off) or 0.05 to {_DAY} seconds",
        lambda every: every == 0 or 0.05 <= every <= _DAY,
    ),
)
"""Rules of single settings: the name, the rule, and whether a value keeps it. ValueError: it does not."""


def check_run(config: RunConfig, *, code_follows: bool = False) -> list[str]:
    """Every mistake as "dotted.path: what is wrong (given ...)"; empty if there is none. None (undecided) passes.

    code_follows: network and loss, if they are not named, may still become code of the user's, for which `args` are.
    """
    ranges = [message for _, message in checked_as(RunConfig, as_lists(dataclasses.asdict(config)))[1]]
    return ranges or [
        *rule_mistakes(config),
        *_data(config.data),
        *window_mistakes(config.prepare),
        *_cache(config.cache),
        *augment_mistakes(config.augment, config.sample, config.prepare),
        *_network(config.network, code_follows=code_follows),
        *_loss(config.loss, code_follows=code_follows),
        *_train(config.train, config.sample.batch_size),
        *_distribute(config.distribute),
    ]


def rule_mistakes(config: Any) -> Iterator[str]:
    """What breaks a rule of a single setting, in a RunConfig or another that has settings of these names."""
    values = flat(config)
    for at, rule, keeps in _RULES:
        value = values.get(at)
        if value is None:
            continue
        try:
            kept = keeps(value)
        except ValueError:
            kept = False
        if not kept:
            yield wrong(at, rule, value)


def _data(data: schema.DataConfig) -> Iterator[str]:
    split = data.split
    at = "data.split"
    if split.by not in ("list", None) and split.validation:
        yield f"{at}.validation: is used only with {at}.by: list (given by: {split.by}); set that or leave it out"
    if data.regions:
        yield from (f"data.regions: {mistake}" for mistake in region_mistakes(data.regions, data.region_values or {}))


def _cache(cache: schema.CacheConfig) -> Iterator[str]:
    if cache.dir and is_url(cache.dir):
        yield wrong("cache.dir", "must be a local folder", shown(cache.dir))
    for name in ("device", "ram"):
        if getattr(cache, name) != "auto" and cache.home != "auto":
            yield f"cache.{name}: is used only with cache.home: auto (given: {cache.home}); leave one of them out"


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


def _distribute(distribute: schema.DistributeConfig) -> Iterator[str]:
    if distribute.exchange_every and not distribute.parts:
        yield "distribute.exchange_every: needs distribute.parts, as every process sees all cases without them"
    if distribute.strategy == "horovod" and distribute.gradients == "bf16":
        yield "distribute.gradients: horovod sends no bf16; use fp16 or fp32"


def wrong(at: str, rule: str, value: object) -> str:
    return f"{at}: {rule} (given {as_lists(value)})"
