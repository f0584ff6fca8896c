"""The built-in networks and the settings that each has; checks of the section `network`. Nothing is built here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import get_args

from hasten.config.patterns import as_lists
from hasten.config.schema import Activation, NetworkConfig, NetworkName, Triple
from hasten.config.settled import PlannedNetwork, fields_of
from hasten.config.user_code import is_user_code, name_mistake, own_mistakes

SETTINGS = ("num_res_units", "blocks", "kernel_size", "norm", "act", "dropout", "deep_supervision")
"""Settings of NetworkConfig that not every network has; each has name, channels, strides and weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltIn:
    """What a built-in network has. Its builder is in `hasten.nets.build`."""

    settings: tuple[str, ...]
    """Names of those of `SETTINGS` that the network has."""
    act: Activation = "prelu"
    """Activation of the network where network.act is None."""
    fewest_strides: int = 1
    halving: bool = False
    """Whether each level halves every side, and the channels of all levels follow from those of the finest."""
    factors: tuple[int, ...] = ()
    """Channels of each level over those of the finest, if halving; () doubles them, at any number of levels."""
    channels_multiple: int = 1
    """What the channels of the finest level are a multiple of."""
    every_output: bool = False
    """Whether deep supervision, if any, has an output at every level, the coarsest too."""
    planned_width: float = 1.0
    """The channels that a plan gives the finest level, as a share of those that it gives a unet."""

    def channels(self, first: int, levels: int) -> tuple[int, ...]:
        """The channels of all levels, if halving."""
        factors = self.factors or tuple(2**level for level in range(levels))
        return tuple(first * factor for factor in factors)


_NNUNET = ("blocks", "kernel_size", "norm", "act", "dropout", "deep_supervision")
NETWORKS: dict[str, BuiltIn] = {
    "unet": BuiltIn(settings=("num_res_units", "norm", "act", "dropout")),
    "dynunet": BuiltIn(
        settings=("num_res_units", "kernel_size", "norm", "act", "dropout", "deep_supervision"), fewest_strides=2
    ),
    "plainconvunet": BuiltIn(settings=_NNUNET, act="leakyrelu"),
    "residualencoderunet": BuiltIn(settings=_NNUNET, act="leakyrelu"),
    "segresnet": BuiltIn(settings=("blocks", "norm", "act", "dropout"), act="relu", halving=True),
    "segresnetds": BuiltIn(settings=("blocks", "norm", "act", "deep_supervision"), act="relu", halving=True),
    "mednext": BuiltIn(settings=("blocks", "deep_supervision"), halving=True, every_output=True),
    "swinunetr": BuiltIn(
        settings=("norm", "dropout"),
        halving=True,
        factors=(1, 1, 2, 4, 8, 16),
        channels_multiple=12,
        planned_width=1.5,
    ),
}


def changed_settings(network: NetworkConfig) -> list[str]:
    """Names of the `SETTINGS` that differ from their default."""
    usual = NetworkConfig()
    return [name for name in SETTINGS if getattr(network, name) != getattr(usual, name)]


def name_for(network: NetworkConfig, preferred: str) -> str | None:
    """The name to use if `network.name` is None: `preferred`, or the first with all settings that `network` changes.

    None if no network has all settings that differ from their default.
    """
    changed = set(changed_settings(network))
    return next((name for name in (preferred, *NETWORKS) if changed <= set(NETWORKS[name].settings)), None)


def setting_mistakes(network: NetworkConfig) -> Iterator[str]:
    """Settings that differ from their default and that the built-in network does not have."""
    if network.name is None:
        if name_for(network, next(iter(NETWORKS))) is None:
            together = ", ".join(f"network.{name}" for name in changed_settings(network))
            yield f"{together}: no built-in network has all of these settings; leave some of them out"
        return
    for name in changed_settings(network):
        if name in NETWORKS[network.name].settings:
            continue
        having = ", ".join(other for other, built_in in NETWORKS.items() if name in built_in.settings)
        value = as_lists(getattr(network, name))
        given = f"network.{name}: network.name={network.name} has no such setting (given {value})"
        yield f"{given}; leave it out, or use one of {having}"


def network_mistake(network: PlannedNetwork, spatial_dims: int) -> str | None:
    """The first reason why a built-in network can't be built."""
    channels, strides = network.channels, network.strides
    if len(strides) != len(channels) - 1:
        levels = f"{len(channels)} levels of network.channels"
        return f"network.strides: {len(strides)} strides for {levels}; give {len(channels) - 1}, one between two levels"
    if spatial_dims == 2 and any(stride[0] != 1 for stride in strides):
        flat = [[1, *stride[1:]] for stride in strides]
        return f"network.strides: {as_lists(strides)} halve the depth of 2-D images; use {flat}"
    mistakes = chain(
        setting_mistakes(network), _levels(network, len(channels)), _halving(network, channels, strides, spatial_dims)
    )
    return next(mistakes, None)


def _levels(network: PlannedNetwork, levels: int) -> Iterator[str]:
    built_in, heads = NETWORKS[network.name], network.deep_supervision
    for name in ("blocks", "kernel_size"):
        value = getattr(network, name)
        if value is not None and len(value) != levels:
            yield f"network.{name}: {as_lists(value)} for {levels} levels; give {levels}, the finest level's first"
    if levels <= built_in.fewest_strides:
        yield f"network.channels: {levels} levels; {network.name} has {built_in.fewest_strides + 1} or more"
    if built_in.every_output and heads not in (0, levels - 1):
        yield f"network.deep_supervision: {heads}; {network.name} has one behind each stride: use {levels - 1}, or 0"
    elif not built_in.every_output and 1 < levels <= heads + 1:
        yield f"network.deep_supervision: {heads}; each level but the coarsest has an output: use {levels - 2} or less"


def _halving(
    network: PlannedNetwork, channels: tuple[int, ...], strides: tuple[Triple, ...], spatial_dims: int
) -> Iterator[str]:
    built_in = NETWORKS[network.name]
    if not built_in.halving:
        return
    multiple = built_in.channels_multiple
    if channels[0] % multiple:
        yield f"network.channels: {channels[0]} at the finest level; {network.name} takes multiples of {multiple}"
    default = built_in.channels(channels[0], len(channels))
    step = [2, 2, 2] if spatial_dims == 3 else [1, 2, 2]
    if channels != default or any(list(stride) != step for stride in strides):
        yield (
            f"network.channels: {as_lists(channels)} with network.strides {as_lists(strides)}; {network.name} has "
            f"fixed channels and halves every side: use {as_lists(default)} with "
            f"strides {[step] * (len(default) - 1)}, or network.name=unet"
        )


GIVEN_BY_RUN = ("in_channels", "out_channels", "spatial_dims", "patch")
"""Parameters of the user's factory that the run fills in."""
_OF_BUILT_IN = ("channels", "strides", *SETTINGS)
_OF_OWN = ("args", "digest", "divisor")


def is_own(network: NetworkConfig) -> bool:
    """Whether the user's code builds it."""
    return network.name is not None and is_user_code(network.name)


def name_mistakes(network: NetworkConfig, *, code_follows: bool = False) -> Iterator[str]:
    """An error if the name is unknown, and one for each setting that its kind (built-in, user code) does not have.

    code_follows: without a name, it may still become user code, for which `args` are.
    """
    names: tuple[str, ...] = get_args(NetworkName)
    usual = fields_of(NetworkConfig())
    changed = {name for name, value in usual.items() if getattr(network, name) not in (value, ())}
    if is_own(network):
        unused = [name for name in _OF_BUILT_IN if name in changed]
        yield from own_mistakes("network", "networks", network, unused, GIVEN_BY_RUN)
        return
    if network.name is not None and network.name not in names:
        yield name_mistake("network.name", network.name, names)
        return
    for name in _OF_OWN:
        if name in changed and not (code_follows and network.name is None and name == "args"):
            yield f"network.{name}: is for a network of your own; leave it out, or name yours by network.name"
    yield from setting_mistakes(network)
