"""Whether a planned network can be built and takes the planned patches."""

from __future__ import annotations

import math

from hasten.config.networks import NETWORKS, is_own, network_mistake
from hasten.config.schema import Triple
from hasten.config.settled import PlannedNetwork, PlannedRun
from hasten.nets.build import divisor


def check_network(config: PlannedRun, spatial_dims: int) -> list[str]:
    """Mistakes: a network that can't be built, or patch sizes that it can't take."""
    unit, sample, infer = divisor(config.network), config.sample.patch, config.infer.patch
    # An inference patch that follows the training patch is not a second mistake.
    patches = {"sample.patch": sample} if infer == sample else {"sample.patch": sample, "infer.patch": infer}
    if spatial_dims == 2:
        deep = [name for name, patch in patches.items() if patch[0] != 1]
        if deep:
            return [
                f"{name}: {list(patches[name])} is 3-D; use {[1, *patches[name][1:]]} for 2-D images" for name in deep
            ]
    mistake = None if is_own(config.network) else network_mistake(config.network, spatial_dims)
    if mistake:
        return [mistake]
    piece = math.ceil(config.sample.batch_size / config.train.accumulate)
    alone = piece == 1 or config.sample.batch_size % piece == 1
    mistakes = (_patch_mistake(name, patch, unit, config.network, alone) for name, patch in patches.items())
    return [text for text in mistakes if text]


def _patch_mistake(name: str, patch: Triple, unit: Triple, network: PlannedNetwork, alone: bool) -> str | None:
    """Why the network can't take a patch. alone: whether a batch norm gets a single sample in training."""
    setting = "network.divisor" if is_own(network) else "network.strides"
    if not is_own(network) and NETWORKS[network.name].factors:
        setting = f"network.name={network.name}"
    if any(side % by for side, by in zip(patch, unit, strict=True)):
        near = [math.ceil(side / by) * by for side, by in zip(patch, unit, strict=True)]
        return f"{name}: {list(patch)} is not a multiple of {list(unit)}, as {setting} asks; use {near}"
    unscaled = network.norm == "instance" or (network.norm == "batch" and alone and name == "sample.patch")
    if patch == unit and unscaled and not is_own(network):
        larger = [2 * side if side > 1 else 1 for side in patch]
        fewer = "" if NETWORKS[network.name].factors else ", or fewer strides"
        return (
            f"{name}: {list(patch)} leaves one voxel at the coarsest level, which {network.norm} norm cannot scale; "
            f"use {larger} or more{fewer}"
        )
    return None
