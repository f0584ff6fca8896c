"""Makes a full configuration from a fingerprint, with a reason for every decision.

A field that is already set is kept. The figures of merit behind the defaults are in docs/concepts.md and
benchmarks/results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from hasten.config.augment import ROTATE_DEG, SCALE_RANGE, chain_name
from hasten.config.decision import CPU, GPU, Budget, Decision, set_by_user
from hasten.config.fingerprint import Fingerprint, coarser_spacing
from hasten.config.networks import NETWORKS, BuiltIn, is_own, name_for
from hasten.config.scalings import canonical, kinds_of, window_mistakes
from hasten.config.schema import Intensity, NetworkConfig, RunConfig, Spacing, Triple, triple
from hasten.config.settled import PlannedRun, fields_of, planned_run, with_settings

_FEWEST_CROPS = 4
"""Fewest patches of a step if a patch is part of a case: with 2, whole steps show no foreground and the Dice jumps."""
_SHORT_S = 300.0
"""Seconds of a run in whose few steps a patch should show twice as much of a case."""
_BOX = 1.5
"""A patch that is this many times as large as the box of all labels, or as large as the case, shows enough."""
_THICK_PATCH = 3
"""Width of a patch over its number of slices, from which on a rotation out of the plane mixes slices that lie apart."""
_LEAST_KEPT = 0.85
"""Least Dice, of the worst class, that a coarser grid keeps of the labels."""
_LEAST_SIDE = 8
"""Voxels of the shortest side that is halved."""
_OWN = "not used: network.name is of the user's own code"


def decide_settings(
    fingerprint: Fingerprint, config: RunConfig, *, num_train: int, accelerator: bool
) -> tuple[PlannedRun, dict[str, Decision]]:
    """The configuration with every field that data can decide filled in, and the decisions by dotted name.

    What only a measurement on the machine can decide (precision, memory format, compiling) is left as it is. Raises
    ValueError for windows that are not those of the windowed channels.
    """
    plan = Plan(fingerprint, config, num_train, GPU if accelerator else CPU)
    for name, decide in _DECISIONS:
        plan.settle(name, decide)
    plan.merge_channels()
    return planned_run(plan.config), plan.decisions


def with_network(
    planned: PlannedRun, decisions: dict[str, Decision], name: str, fingerprint: Fingerprint, *, accelerator: bool
) -> tuple[PlannedRun, dict[str, Decision]]:
    """The plan with another built-in network; every decision about the network is repeated."""
    about = [(field, decide) for field, decide in _DECISIONS if field.startswith("network.")]
    decided = [field for field, _ in about if field in decisions and decisions[field].open]
    still_open = {field.removeprefix("network."): None for field in decided}
    network = {**fields_of(planned.network), **still_open, "name": name}
    config = RunConfig(**{**fields_of(planned), "network": NetworkConfig(**network)})
    plan = Plan(fingerprint, config, len(fingerprint.shapes), GPU if accelerator else CPU)
    plan.decisions = {field: decision for field, decision in decisions.items() if field not in decided}
    for field, decide in about:
        plan.settle(field, decide)
    plan.decisions["network.name"] = replace(decisions["network.name"], value=name)
    return planned_run(plan.config), plan.decisions


def median_shape(fingerprint: Fingerprint, config: RunConfig) -> tuple[float, float, float]:
    """Median shape (D, H, W) of the prepared cases, in voxels."""
    spacing = config.prepare.spacing or (0.0, 0.0, 0.0)
    sizes = [
        [side * (at / to if to else 1.0) for side, at, to in zip(shape, original, spacing, strict=True)]
        for shape, original in zip(fingerprint.shapes, fingerprint.spacings, strict=True)
    ]
    return triple(map(median, zip(*sizes, strict=True)))


def holds_a_case(patch: Triple, shape: tuple[float, float, float]) -> bool:
    """Whether a patch (D, H, W) is as large as the median case."""
    return all(side >= round(size) for side, size in zip(patch, shape, strict=True))


class Plan:
    """The configuration as it fills up; later decisions read earlier ones."""

    def __init__(self, fingerprint: Fingerprint, config: RunConfig, num_train: int, budget: Budget) -> None:
        self.fingerprint = fingerprint
        self.config = config
        self.num_train = num_train
        self.budget = budget
        self.decisions: dict[str, Decision] = {}

    def settle(self, name: str, decide: Callable[[Plan], Decision | None]) -> None:
        section, key = name.split(".")
        value = getattr(getattr(self.config, section), key)
        decision = decide(self) if value is None else set_by_user(value)
        if decision is None:
            return
        self.config = with_settings(self.config, section, **{key: decision.value})
        self.decisions[name] = decision

    def merge_channels(self) -> None:
        """Merge equal scalings of all channels into one value. Raises ValueError for windows of other channels."""
        mistakes = list(window_mistakes(self.config.prepare))
        if mistakes:
            raise ValueError("\n".join(mistakes))
        self.config = replace(self.config, prepare=canonical(self.config.prepare))
        for name in ("intensity", "window"):
            at = f"prepare.{name}"
            self.decisions[at] = replace(self.decisions[at], value=getattr(self.config.prepare, name))

    @property
    def is_ct(self) -> bool:
        return self.fingerprint.modality.strip().upper().startswith("CT")

    @property
    def scaled_as(self) -> tuple[str, ...]:
        """The scaling that each channel's name implies; for a single channel the modality replaces its name."""
        names = self.fingerprint.channels
        kinds = tuple(map(_scaled_as, names))
        return ("ct",) if len(names) == 1 and kinds == ("",) and self.is_ct else kinds

    @property
    def built_in(self) -> BuiltIn:
        """The properties of the built-in network; none for the user's own code."""
        network = self.config.network
        return BuiltIn(settings=()) if is_own(network) else NETWORKS[str(network.name)]

    @property
    def num_strides(self) -> int:
        """Strides between levels: from the strides or channels that are set, else at most what the budget allows."""
        network = self.config.network
        if network.strides is not None:
            return len(network.strides)
        if self.built_in.factors:
            return len(self.built_in.factors) - 1
        return (self.budget.levels if network.channels is None else len(network.channels)) - 1

    def units(self, sides: Sequence[int]) -> Triple:
        """What the sides (D, H, W) of a patch of about this size are multiples of, so that every level can halve it."""
        if self.config.network.divisor is not None:
            return self.config.network.divisor
        strides = self.config.network.strides
        if strides is not None:
            return triple(math.prod(stride[axis] for stride in strides) for axis in range(3))
        if self.built_in.halving or is_own(self.config.network):
            unit = 2**self.num_strides
            return 1 if self.fingerprint.spatial_dims == 2 else unit, unit, unit
        return _halvings(sides, self.voxel, self.num_strides)

    @property
    def shape(self) -> tuple[float, float, float]:
        return median_shape(self.fingerprint, self.config)

    def seen(self, spacing: Spacing) -> float:
        """Share of the median case, at this spacing, that a patch holds; 1 where it holds all that is labelled."""
        config = with_settings(self.config, "prepare", spacing=spacing)
        there = Plan(self.fingerprint, config, self.num_train, self.budget)
        patch, shape = config.sample.patch or _patch(there).value, there.shape
        share = math.prod(min(side, size) / size for side, size in zip(patch, shape, strict=True))
        box, voxel = self.fingerprint.foreground_box, there.voxel
        sides = zip(patch, shape, voxel, box, strict=True)
        wide = _BOX * self.coverage
        holds_all = any(box) and all(side >= size or side * mm >= wide * length for side, size, mm, length in sides)
        return 1.0 if holds_all else share

    @property
    def coverage(self) -> int:
        """How many times as much as usual a patch should show: twice, for the few steps of a short run."""
        return 2 if (self.config.train.budget or math.inf) <= _SHORT_S else 1

    @property
    def median_spacing(self) -> Spacing:
        return triple(map(median, zip(*self.fingerprint.spacings, strict=True)))

    @property
    def voxel(self) -> Spacing:
        """Spacing (D, H, W) of the prepared cases: the target, or the median of their own."""
        spacing = self.config.prepare.spacing or (0.0, 0.0, 0.0)
        return triple(target or usual for target, usual in zip(spacing, self.median_spacing, strict=True))


def _spacing(plan: Plan) -> Decision:
    """The data set's own spacing, or the finest coarser one at which a patch shows enough of a case."""
    own, least = _own_spacing(plan), plan.budget.least_seen * plan.coverage
    before = seen = plan.seen(own.value)
    chosen, limit = own, ""
    for factor, dice in plan.fingerprint.kept_dice.items():
        if seen >= least:
            break
        worst = min(dice, key=lambda value: dice[value])
        if dice[worst] < _LEAST_KEPT:
            name = plan.fingerprint.labels[worst]
            limit = f"; no coarser, as labels of {name} brought there and back keep a Dice of only {dice[worst]:.2f}"
            break
        spacing = triple(float(f"{side:.5g}") for side in coarser_spacing(plan.median_spacing, factor))
        chosen = Decision(spacing, f"labels brought there and back keep a Dice of {dice[worst]:.3f}")
        seen = plan.seen(spacing)
    if chosen is own:
        return replace(own, reason=f"{own.reason}{limit}")
    own_mm = " x ".join(f"{value:g}" for value in plan.median_spacing)
    shows = f"coarser than {own_mm} mm, where a patch shows {before:.0%} of the median case: here it shows {seen:.0%}"
    return replace(chosen, reason=f"{shows}, and {chosen.reason}{limit}")


def _own_spacing(plan: Plan) -> Decision:
    spacings, medians = plan.fingerprint.spacings, plan.median_spacing
    if plan.fingerprint.spatial_dims == 2:
        return Decision((0.0, 0.0, 0.0), "2-D images are kept at their own size")
    if all(abs(at[axis] - medians[axis]) <= 0.01 * medians[axis] for at in spacings for axis in range(3)):
        shared = " x ".join(f"{value:g}" for value in medians)
        return Decision((0.0, 0.0, 0.0), f"all {len(spacings)} cases share {shared} mm: nothing is resampled")
    return Decision(tuple(float(f"{value:.5g}") for value in medians), f"median of {len(spacings)} cases")


def _intensity(plan: Plan) -> Decision:
    scaled_as = plan.scaled_as
    if len(set(scaled_as)) == 1:
        kind, reason = _SCALINGS[scaled_as[0]]
        usual = {"ct": "CT", "": plan.fingerprint.modality or "not CT"}
        channel = usual.get(scaled_as[0], plan.fingerprint.channels[0])
        return Decision(kind, f"{channel}: {reason}")
    reasons = [f"{name}: {_SCALINGS[each][1]}" for name, each in zip(plan.fingerprint.channels, scaled_as, strict=True)]
    return Decision(tuple(_SCALINGS[each][0] for each in scaled_as), "; ".join(reasons))


_SCALINGS: dict[str, tuple[Intensity, str]] = {
    "nonorm": ("none", "nnU-Net's word for values that are kept"),
    "rgb_to_0_1": ("window", "nnU-Net's word for 0 to 255 brought to 0 to 1"),
    "ct": ("window", "Hounsfield units are absolute, so one window serves every case"),
    "": ("zscore", "intensities are relative to the case"),
}
"""The scaling that a channel's name implies, and the reason."""


def _scaled_as(name: str) -> str:
    """The key of `_SCALINGS` for a channel's name: nnU-Net derives the intensity scaling from it."""
    name = name.strip().casefold()
    return "ct" if name.startswith("ct") else name if name in _SCALINGS else ""


def _window(plan: Plan) -> Decision:
    """One window if all channels share it or the user sets it; else one for each windowed channel."""
    channels = plan.fingerprint.channels
    kinds = kinds_of(plan.config.prepare, len(channels))
    windowed = [channel for channel, kind in enumerate(kinds) if kind == "window"]
    if not windowed:
        return Decision((0.0, 1.0), "not used")
    together = plan.decisions["prepare.intensity"].set_by == "user" or len(set(plan.scaled_as)) == 1
    if together and len(windowed) == len(channels):
        return _window_of(plan, windowed)
    decisions = {channel: _window_of(plan, [channel]) for channel in windowed}
    reasons = [f"{channels[channel]}: {decision.reason}" for channel, decision in decisions.items()]
    values = tuple(decisions[channel].value if channel in decisions else None for channel in range(len(channels)))
    return Decision(values, "; ".join(reasons))


def _window_of(plan: Plan, channels: list[int]) -> Decision:
    if all(plan.scaled_as[channel] == "rgb_to_0_1" for channel in channels):
        return Decision((0.0, 255.0), "what 8 bits hold")
    lows, highs = (plan.fingerprint.foreground_intensity[name] for name in ("p0_5", "p99_5"))
    low, high = math.floor(min(lows[each] for each in channels)), math.ceil(max(highs[each] for each in channels))
    margin = max(10, (high - low) // 4)
    return Decision(
        (float(low - margin), float(high + margin)),
        f"labelled voxels lie between {low} and {high} (0.5 and 99.5 percentile); a quarter more on each side",
    )


def _crop_foreground(plan: Plan) -> Decision:
    share = plan.fingerprint.crop_fraction
    if plan.fingerprint.spatial_dims == 3 and share < 0.9:
        return Decision(True, f"the body fills {share:.0%} of a volume: the air around it need not be stored")
    return Decision(False, f"the box of the foreground is {share:.0%} of a case")


def _patch(plan: Plan) -> Decision:
    budget = plan.budget.patch_voxels
    shape = [max(1, round(size)) for size in plan.shape]
    units = plan.units(shape)
    sides = [math.ceil(size / step) * step for size, step in zip(shape, units, strict=True)]
    reason = "a patch holds a whole case, rounded up"
    # A network that always halves so often needs more than one voxel at its coarsest level to scale.
    most = math.prod(units) if plan.built_in.factors else 0
    if math.prod(sides) == most:
        sides[2] += units[2]
    while math.prod(sides) > budget:
        free = [axis for axis in range(3) if sides[axis] > units[axis] and math.prod(sides) > 2 * most]
        if not free:
            reason = f"the network's strides ask for a patch of over {budget} voxels"
            break
        # The longest side in mm shrinks first, so that a patch approaches a cube of anatomy. Smaller sides are halved
        # less often, so multiples of less will do.
        axis = max(free, key=lambda axis: sides[axis] * plan.voxel[axis])
        sides[axis] -= units[axis]
        units = triple(map(min, units, plan.units(sides)))
        reason = f"cut down, longest side in mm first, to at most {budget} voxels"
    size, unit = (" x ".join(map(str, values)) for values in (shape, units))
    return Decision(tuple(sides), f"median case is {size} voxels: {reason}, a multiple of {unit}")


def _batch_size(plan: Plan) -> Decision:
    patch: Triple = plan.decisions["sample.patch"].value
    size = max(2, min(16, plan.budget.batch_voxels // math.prod(patch)))
    reason = f"about {plan.budget.batch_voxels} voxels in a step"
    if size < _FEWEST_CROPS and not holds_a_case(patch, plan.shape):
        return Decision(_FEWEST_CROPS, f"{reason}, but no fewer than {_FEWEST_CROPS} crops, to show more of the cases")
    return Decision(size, reason)


def _flip_prob(plan: Plan) -> Decision:
    augment = plan.config.augment
    if augment.chain or augment.preset != "default":
        return Decision((0.0, 0.0, 0.0), f"not used: {chain_name(augment)} has its own flips")
    if plan.fingerprint.spatial_dims == 2:
        return Decision((0.0, 0.5, 0.5), "2-D: both axes")
    if plan.is_ct:
        return Decision((0.0, 0.0, 0.0), "CT of a trunk: organs have a side, a mirror image of one is another organ's")
    return Decision((0.0, 0.0, 0.0), "oriented volumes: anatomy has a side, and mirror images cost Dice in short runs")


def _rotate_deg(plan: Plan) -> Decision | None:
    patch: Triple = plan.decisions["sample.patch"].value
    decision = _strength(ROTATE_DEG, plan)
    # 2-D uses the first.
    if decision is None or plan.fingerprint.spatial_dims == 2 or max(patch) <= _THICK_PATCH * patch[0]:
        return decision
    reason = f"within the slices, as a patch is over {_THICK_PATCH} times as wide as it has slices: nnU-Net's rule"
    return Decision((ROTATE_DEG[0], 0.0, 0.0), reason)


def _strength(value: Any, plan: Plan) -> Decision | None:
    augment = plan.config.augment
    if augment.chain or augment.preset != "default":
        return None
    return Decision(value, f"that of augment.preset={augment.preset}", "default")


def _steps(plan: Plan) -> Decision:
    steps, size = plan.budget.steps, plan.decisions["sample.batch_size"].value
    passes = steps * size / plan.num_train
    return Decision(steps, f"one cycle; {passes:.0f} passes over {plan.num_train} training cases", "default")


def _validate_every(plan: Plan) -> Decision:
    steps, limited = plan.decisions["train.steps"].value, plan.config.train.budget is not None
    every = validation_steps(steps, limited=limited)
    return Decision(every, f"about {math.ceil(steps / every)} validations in all {steps} steps", "default")


def validation_steps(steps: int, *, limited: bool) -> int:
    """Steps between validations; with a time limit there are fewer, as each reduces the time to train."""
    return max(1, min(steps, max(25, steps // (10 if limited else 30))))


def _network_name(plan: Plan) -> Decision:
    preferred, why = plan.budget.network, plan.budget.network_why
    name = name_for(plan.config.network, preferred)
    return Decision(name, why if name == preferred else f"{preferred} has not all of the network's settings")


def _strides(plan: Plan) -> Decision:
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


def _halvings(sides: Sequence[int], voxel: Sequence[float], levels: int) -> Triple:
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


def _channels(plan: Plan) -> Decision:
    if is_own(plan.config.network):
        return Decision((), _OWN)
    budget, built_in, levels = plan.budget, plan.built_in, len(plan.decisions["network.strides"].value) + 1
    first = int(budget.first * built_in.planned_width)
    widest = math.inf if built_in.halving else budget.widest
    channels = tuple(min(width, widest) for width in built_in.channels(first, levels))
    basis = f", as {plan.config.network.name} has them" if built_in.factors else ", doubled per level"
    return Decision(channels, f"{first} at full resolution{basis}")


def _kernel_size(plan: Plan) -> Decision | None:
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


_DECISIONS: tuple[tuple[str, Callable[[Plan], Decision | None]], ...] = (
    ("network.name", _network_name),
    ("prepare.spacing", _spacing),
    ("prepare.intensity", _intensity),
    ("prepare.window", _window),
    ("prepare.crop_foreground", _crop_foreground),
    ("sample.patch", _patch),
    ("sample.batch_size", _batch_size),
    ("sample.flip_prob", _flip_prob),
    ("sample.rotate_deg", _rotate_deg),
    ("sample.scale_range", partial(_strength, SCALE_RANGE)),
    ("sample.stages", lambda _: Decision((), "full patches in every step", "default")),
    ("network.strides", _strides),
    ("network.channels", _channels),
    ("network.kernel_size", _kernel_size),
    ("train.steps", _steps),
    ("train.learning_rate", lambda _: Decision(8e-3, "peak of the one-cycle schedule", "default")),
    ("train.validate_every", _validate_every),
    ("train.checkpoint_every", lambda plan: Decision(plan.config.train.validate_every, "with validations", "default")),
    ("infer.patch", lambda plan: Decision(plan.config.sample.patch, "the training patch", "default")),
)
