"""A plan's decisions about the network, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hasten.config.decision import Decision
from hasten.config.networks import is_own, name_for
from hasten.config.schema import Triple, triple

if TYPE_CHECKING:
    from hasten.config.plan import Plan

_LEAST_SIDE = 8
"""Voxels of the shortest side that is halved."""
_OWN = "not used: network.name is of the user's own code"


def decide_name(plan: Plan) -> Decision:
    preferred, why = plan.budget.network, plan.budget.network_why
    name = name_for(plan.config.network, preferred)
    return Decision(name, why if name == preferred else f"{preferred} has not all of the network's settings")


def decide_strides(plan: Plan) -> Decision:
    network, built_in, flat = plan.config.network, plan.built_in, plan.fingerprint.spatial_dims == 2
    if is_own(network):
        return Decision((), _OWN)
    patch: Triple = plan.decisions["sample.patch"].value
    sides, voxel = list(patch), list(plan.voxel)
    # Given channels fix the number of levels, whatever can be halved; so do some networks.
    fixed = network.channels is not None or built_in.factors
    fewest = plan.num_strides if fixed else built_in.fewest_strides
    strides: list[Triple] = []
    for level in range(max(plan.num_strides, fewest)):
        if built_in.halving:
            step = (1 if flat else 2, 2, 2)
            fits = all(by == 1 or (side >= 4 and side % 2 == 0) for side, by in zip(sides, step, strict=True))
        else:
            step = _finest_axes([side >= _LEAST_SIDE and side % 2 == 0 for side in sides], voxel)
            fits = max(step) > 1
        if not fits and level >= fewest:
            break
        sides = [side // by for side, by in zip(sides, step, strict=True)]
        voxel = [at * by for at, by in zip(voxel, step, strict=True)]
        strides.append(step)
    if built_in.halving:
        return Decision(tuple(strides), f"{network.name} halves every axis at each level")
    return Decision(
        tuple(strides), "each level halves the axes that are at least 8 long and not yet twice as coarse in mm"
    )


def halvings(sides: Sequence[int], voxel: Sequence[float], levels: int) -> Triple:
    """What a side (D, H, W) of a patch is divided by in all, if it is as long as these and made a multiple of that."""
    left, at, total = list(sides), list(voxel), [1, 1, 1]
    for _ in range(levels):
        step = _finest_axes([side >= _LEAST_SIDE for side in left], at)
        left = [-(-side // by) for side, by in zip(left, step, strict=True)]
        at = [mm * by for mm, by in zip(at, step, strict=True)]
        total = [so_far * by for so_far, by in zip(total, step, strict=True)]
    return triple(total)


def _finest_axes(can_halve: Sequence[bool], voxel: Sequence[float]) -> Triple:
    """Halve what can be, but for axes whose voxels are twice as long as the finest: features become isotropic in mm.

    An axis that is too short to be halved again does not hold the others back.
    """
    coarse = 2 * min((at for can, at in zip(can_halve, voxel, strict=True) if can), default=0.0)
    return triple(2 if can and at < coarse else 1 for can, at in zip(can_halve, voxel, strict=True))


def decide_channels(plan: Plan) -> Decision:
    if is_own(plan.config.network):
        return Decision((), _OWN)
    budget, built_in, levels = plan.budget, plan.built_in, len(plan.decisions["network.strides"].value) + 1
    first = int(budget.first * built_in.planned_width)
    widest = math.inf if built_in.halving else budget.widest
    channels = tuple(min(width, widest) for width in built_in.channels(first, levels))
    basis = f", as {plan.config.network.name} has them" if built_in.factors else ", doubled per level"
    return Decision(channels, f"{first} at full resolution{basis}")


def decide_kernel_size(plan: Plan) -> Decision | None:
    """nnU-Net's rule: 1 along an axis until its voxels are less than twice as long as the shortest, 3 from there on."""
    if "kernel_size" not in plan.built_in.settings:
        return None
    flat = plan.decisions["sample.patch"].value[0] == 1
    voxel, kernel, kernels = list(plan.voxel), [1, 1, 1], list[Triple]()
    three = (1 if flat else 3, 3, 3)
    for step in plan.decisions["network.strides"].value:
        is_fine = [at < 2 * min(voxel[flat:]) for at in voxel]
        kernel = [wide if close else side for wide, close, side in zip(three, is_fine, kernel, strict=True)]
        kernels.append(triple(kernel))
        voxel = [at * by for at, by in zip(voxel, step, strict=True)]
    kernels.append(three)
    every = "3 along both axes" if flat else "3 along every axis"
    reason = every if len(set(kernels)) == 1 else "1 along an axis while its voxels are twice as long"
    return Decision(tuple(kernels), f"{reason}, as nnU-Net does")
