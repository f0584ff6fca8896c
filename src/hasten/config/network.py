"""Checks of the section `network`, for built-in networks and for the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

from hasten.config.networks import SETTINGS, setting_mistakes
from hasten.config.schema import NetworkConfig, NetworkName
from hasten.config.user_code import args_mistakes, is_user_code, name_mistake

GIVEN_BY_RUN = ("in_channels", "out_channels", "spatial_dims", "patch")
"""Parameters of the user's factory that the run fills in."""
_OF_BUILT_IN = ("channels", "strides", *SETTINGS)
_OF_OWN = ("args", "digest", "divisor")


def is_own(network: NetworkConfig) -> bool:
    """Whether the user's code builds it."""
    return network.name is not None and is_user_code(network.name)


def name_mistakes(network: NetworkConfig) -> Iterator[str]:
    """A name that is neither of a built-in network nor of code, and settings that are of the other kind of them."""
    names: tuple[str, ...] = get_args(NetworkName)
    usual = {field.name: _default(field) for field in dataclasses.fields(NetworkConfig)}
    changed = {name for name, value in usual.items() if getattr(network, name) not in (value, ())}
    if is_own(network):
        for name in _OF_BUILT_IN:
            if name in changed:
                yield (
                    f"network.{name}: is a setting of the built-in networks, and network.name={network.name} has none; "
                    "leave it out, or give it to your code by network.args"
                )
        yield from args_mistakes("network.args", network.args, GIVEN_BY_RUN)
        if network.divisor is not None and min(network.divisor) < 1:
            yield f"network.divisor: must be 1 or more along each axis (given {list(network.divisor)})"
        return
    if network.name is not None and network.name not in names:
        yield name_mistake("network.name", network.name, names)
        return
    for name in _OF_OWN:
        if name in changed:
            yield f"network.{name}: is for a network of your own; leave it out, or name yours by network.name"
    yield from setting_mistakes(network)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
