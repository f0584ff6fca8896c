"""A run's step beside a bare loop, and what each switch gains, for every built-in network and one of MONAI's.

The bare loop has the same operations written out. On the hippocampus or phantoms of it; the arms take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from benchmarks.data import phantoms
from benchmarks.harness import Claim, Part, arguments, run_parts

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hasten.training.components import RunComponents

OVERHEAD = 1.02
MONAI = "monai.networks.nets.attentionunet:AttentionUnet"
PATCH, LARGE = 32, {"swinunetr": 64}
"""Voxels along a side of a patch; SwinUNETR divides by 32, and its norms need more than one voxel."""
ROUNDS_OF_LARGE = 7
"""A step of them takes seconds on a CPU."""
ARMS = ("run", "bare", "without surgery", "fp32, contiguous")


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        rounds={"type": int, "help": "steps of each arm; default 25, quick 2"},
        networks={"nargs": "+", "help": "some of the networks; default all"},
    )  # fmt: skip
    given.parts = ["steps"]
    run_parts("networks_steps", {"steps": steps}, given, __doc__)


def steps(given: argparse.Namespace) -> Part:
    with tempfile.TemporaryDirectory() as scratch:
        data = given.data or phantoms(Path(scratch) / "set", 5, {"shape": (40, 56, 40)})
        names = given.networks or (networks()[:1] if given.quick else networks())
        results, about = step_times(data, names, given.rounds or (2 if given.quick else 25), Path(scratch))
    claims = [
        Claim.at_most(
            f"{name}: a run's step over a bare loop with the same switches, median of the rounds",
            statistics.median(results[f"{name}/overhead"]), OVERHEAD,
        )
        for name in names
    ]  # fmt: skip
    return claims, results, about


def networks() -> list[str]:
    """The built-in networks, and one by the name of its module."""
    from hasten.config.schema import NetworkName

    return [*get_args(NetworkName), "AttentionUnet"]


def step_times(data: Path, names: Sequence[str], rounds: int, scratch: Path) -> tuple[dict[str, list[float]], Any]:
    """Milliseconds of each arm and their ratios by round; and of each network its parameters, FLOPs and switches."""
    results: dict[str, list[float]] = {}
    about: dict[str, Any] = {"patch": PATCH, "larger patches": LARGE, "arms": ARMS}
    for name in names:
        print(f"  {name}", file=sys.stderr)
        parts = parts_of(data, name, scratch)
        arms, kept = _arms(parts)
        times = _in_turns(arms, min(rounds, ROUNDS_OF_LARGE) if name in LARGE else rounds)
        results |= {f"{name}/{arm}_ms": [1e3 * each for each in values] for arm, values in times.items()}
        pairs = {"overhead": ("run", "bare"), "gain of surgery": ("without surgery", "bare"),
                 "gain of precision and format": ("fp32, contiguous", "bare")}  # fmt: skip
        for ratio, (over, under) in pairs.items():
            values = zip(times[over], times[under], strict=True)
            results[f"{name}/{ratio}"] = [one / other for one, other in values]
        results[f"{name}/activations_MiB"] = [kept / 2**20]
        about[name] = _about(parts)
    return results, about


def parts_of(data: Path, name: str, scratch: Path, more: Sequence[str] = ()) -> RunComponents:
    from hasten.config.load import load_run
    from hasten.observe.clock import Clock
    from hasten.training.compose import prepare_run

    own = [f"network.name={MONAI}", "network.args={channels: [16, 32, 64, 128], strides: [2, 2, 2]}"]
    settings = own if name == "AttentionUnet" else [f"network.name={name}"]
    patch = [LARGE.get(name, PATCH)] * 3
    config = load_run(None, [
        f"data.source={data}", f"cache.dir={scratch / 'cache'}", f"sample.patch={patch}", "sample.batch_size=2",
        "train.compile=false", "train.steps=100", "train.device=cpu", *settings,
        *more,
    ])  # fmt: skip
    return prepare_run(config, Clock())


def _arms(parts: RunComponents) -> tuple[dict[str, Callable[[int], Any]], int]:
    """Of each arm a step by its index; and bytes that a forward pass of the run's network keeps for the backward."""
    import copy

    import torch

    from hasten.runtime.variant import Variant, variant_of
    from hasten.training.plan import build_net

    planned, step = parts.planned, parts.step
    channels, outputs = len(planned.case_set.channels), planned.num_outputs
    generator = torch.Generator().manual_seed(0)
    patch = planned.config.sample.patch
    image = torch.randn(2, channels, *patch, generator=generator)
    label = torch.randint(0, outputs, (2, 1, *patch), generator=generator).to(torch.uint8)
    operated, variant = copy.deepcopy(step.update.weights), variant_of(planned.config.train)
    plain = Variant(precision="fp32", channels_last=False)
    arms: dict[str, Callable[[int], Any]] = {
        "run": lambda index: step(image, label, index),
        "bare": bare_loop(parts, operated, variant, image, label),
        "without surgery": bare_loop(parts, build_net(planned), variant, image, label),
        "fp32, contiguous": bare_loop(parts, copy.deepcopy(operated), plain, image, label),
    }
    return arms, _kept(lambda: step.forward(image, label))


def bare_loop(
    parts: RunComponents, network: nn.Module, variant: Any, image: torch.Tensor, label: torch.Tensor
) -> Callable[[int], Any]:
    """The operations of a step, in a loop as one writes it: same optimizer, schedule, clipping and average."""
    import copy

    import torch

    from hasten.optim.build import build_optimizer
    from hasten.runtime.precision import memory_format

    planned, train = parts.planned, parts.planned.config.train
    layout = memory_format(planned.case_set.spatial_dims, variant.channels_last)
    network.to(memory_format=layout).train()  # type: ignore[call-overload]
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer, loss = build_optimizer(network, train), planned.loss()
    weights = list(network.parameters())
    numbers = [(mine, other) for mine, other in zip(average.state_dict().values(), network.state_dict().values(),
                                                    strict=True) if mine.is_floating_point()]  # fmt: skip
    to, by = [mine for mine, _ in numbers], [other for _, other in numbers]

    def once(index: int) -> None:
        lowered = torch.autocast("cpu", torch.bfloat16) if variant.precision == "bf16" else nullcontext()
        with lowered:
            output = network(image.contiguous(memory_format=layout))
        loss(output, label).backward()
        for group in optimizer.param_groups:
            group["lr"] = parts.paced(index)
        torch.nn.utils.clip_grad_norm_(weights, train.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(to, by, 1 - train.ema)

    return once


def _kept(forward: Callable[[], Any]) -> int:
    """Bytes of the tensors that a forward pass saves, each storage counted once."""
    import torch

    sizes: dict[int, int] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        loss = forward()
    del loss
    return sum(sizes.values())


def _in_turns(arms: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of each arm. Each round has its own order, so that no arm always follows the same one."""
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    names = list(arms)
    for index in range(3 + rounds):
        for offset in range(len(names)):
            name = names[(index + offset) % len(names)]
            begin = time.perf_counter()
            arms[name](index)
            if index >= 3:
                times[name].append(time.perf_counter() - begin)
    return times


def _about(parts: RunComponents) -> dict[str, Any]:
    from hasten.training.plan import network_size

    surgery = parts.accelerators.get("surgery")
    network, train = parts.planned.config.network, parts.planned.config.train
    return {
        **network_size(parts.planned), "channels": network.channels, "precision": train.precision,
        "channels_last": train.channels_last, "surgery": surgery and dataclasses.asdict(surgery),
    }  # fmt: skip


if __name__ == "__main__":
    main()
