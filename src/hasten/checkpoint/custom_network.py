"""User-defined networks: checked against the plan, stored beside the weights, and rebuilt from the stored code."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.cases.types import CaseSet
from hasten.checkpoint.shared import name_text
from hasten.checkpoint.weights import load_weights
from hasten.config.decision import Decision, set_by_user
from hasten.config.networks import is_own
from hasten.config.schema import RunConfig
from hasten.config.settled import PlannedNetwork, PlannedRun
from hasten.config.user_code import digest_of, name_of, source_of
from hasten.nets.build import build_network
from hasten.nets.custom_network import CustomNetwork, check_custom_network, custom_network, find_divisor
from hasten.nets.random_state import random_state_kept
from hasten.observe.rundir import NETWORK_PY

log = logging.getLogger(__name__)


def with_code(
    config: RunConfig,
    *,
    network: Callable[..., nn.Module] | None = None,
    weights: str | Path | None = None,
    loss: Callable[..., Any] | None = None,
    augment: Any = None,
) -> RunConfig:
    """The settings with `network.name` and `loss.name` of classes or functions, `network.weights` and `augment.chain`.

    None leaves a setting as it is. Raises ValueError.
    """
    if isinstance(network, nn.Module):
        raise ValueError(
            f"network: {type(network).__name__} is built already, and its weights are drawn from train.seed, on "
            "resuming and predicting anew; give its class, or a function that builds it"
        )
    for section, field, value in (("network", "name", network), ("loss", "name", loss), ("augment", "chain", augment)):
        if value is None:
            continue
        try:
            fields = dataclasses.replace(getattr(config, section), **{field: name_of(value)})
        except ValueError as error:
            raise ValueError(f"{section}: {error}") from None
        config = dataclasses.replace(config, **{section: fields})
    if weights is not None:
        config = dataclasses.replace(config, network=dataclasses.replace(config.network, weights=name_text(weights)))
    return config


def with_custom_network(config: RunConfig, case_set: CaseSet) -> tuple[RunConfig, CustomNetwork | None]:
    """The settings with digest and divisor of a user-defined network, and its code; None for a built-in network.

    The code is executed. Raises ValueError for all that can't be a run's network.
    """
    if not is_own(config.network):
        return config, None
    custom = custom_network(
        config.network,
        num_channels=len(case_set.channels),
        spatial_dims=case_set.spatial_dims,
        num_classes=len(case_set.regions or case_set.labels),
    )
    divisor = config.network.divisor or find_divisor(custom)
    network = dataclasses.replace(config.network, digest=custom.code.digest, divisor=divisor)
    return dataclasses.replace(config, network=network), custom


def with_tried_divisor(
    full: PlannedRun, custom: CustomNetwork, decisions: dict[str, Decision], *, divisor_is_set: bool
) -> tuple[PlannedRun, dict[str, Decision]]:
    """The plan with the network's size requirements; the network is then run on the plan's patch. Raises ValueError.

    One that asks for `patch` takes images of that size only. divisor_is_set: whether it was set by the user.
    """
    patch, unit = full.sample.patch, full.network.divisor
    assert unit is not None
    found = Decision(unit, "found by trying small images", "measured")
    decision = set_by_user(unit) if divisor_is_set else found
    if custom.asks_for_patch:
        why = f"{custom.setting} is built for sample.patch={list(patch)} and takes no other size"
        differs = {"infer.patch": full.infer.patch != patch, "sample.stages": bool(full.sample.stages)}
        if any(differs.values()):
            raise ValueError("\n".join(f"{name}: {why}; leave {name} out" for name, does in differs.items() if does))
        unit, decision = patch, Decision(patch, "the network is built for the patch")
    check_custom_network(custom, patch, unit)
    full = dataclasses.replace(full, network=dataclasses.replace(full.network, divisor=unit))
    return full, {**decisions, "network.divisor": decision}


def model_network(
    content: dict[str, Any], config: PlannedRun, *, where: str, trust_changed_code: bool = False
) -> nn.Module:
    """The network of a best.pt's content with its weights, on the CPU.

    where: path of that file, which names it in errors. Of the user's own code only that with the digest of the run is
    executed, unless `trust_changed_code`. Raises ValueError.
    """
    settings = config.network
    if is_own(settings):
        settings = _with_existing_source(settings, where, trust_changed_code)
    # The weights that it draws are replaced: the caller's random numbers must not depend on them.
    with random_state_kept(torch.device("cpu")):
        network = build_network(
            settings,
            num_channels=len(content["channels"]),
            num_classes=len(content.get("regions") or content["labels"]),
            spatial_dims=content["spatial_dims"],
            patch=config.sample.patch,
        )
    load_weights(network, content["weights"], where=where)
    return network


def _with_existing_source(network: PlannedNetwork, where: str, trust_changed_code: bool) -> PlannedNetwork:
    """Settings that name the code to build the network from: the original, or the run's copy where that is gone."""
    place, _, name = network.name.rpartition(":")
    copy_path = Path(where).with_name(NETWORK_PY)
    found, source = network.name, source_of(network.name)
    if source is None and copy_path.is_file():
        log.warning("%s: is gone; the network is built from the run's copy, %s", place, copy_path)
        found, source = f"{copy_path.absolute()}:{name}", copy_path.read_bytes()
    if source is None:
        raise ValueError(f"{where}: its network is built by {place}, which is gone, and so is the copy {copy_path}")
    digest = digest_of(source)
    if digest != network.digest and not trust_changed_code:
        raise ValueError(
            f"{where}: its network is built by {found}, which has changed since the run was trained; restore it, from "
            f"the copy {copy_path} if that is whole, or add --trust-changed-code to use it as it is now"
        )
    return dataclasses.replace(network, name=found, digest=digest)
