"""Settings of the section `infer` of trained networks, changed for a prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hasten.config.check import check_run
from hasten.config.load import from_dict, load_as, to_dict
from hasten.config.schema import RunConfig
from hasten.config.settled import planned_run
from hasten.engine.ensemble import Member
from hasten.engine.job import check_network

_SECTION = "infer"


def with_infer(members: Sequence[Member], overrides: Sequence[str]) -> list[Member]:
    """The same networks with overrides such as "infer.overlap=0.25".

    Raises ValueError for other sections, and for values that the networks can't take.
    """
    others = [text for text in overrides if text.partition("=")[0].partition(".")[0].strip() != _SECTION]
    if others:
        raise ValueError(
            f"override '{others[0]}': a prediction takes settings of the section {_SECTION} only, such as "
            "infer.overlap=0.25; the others are those that the network was trained with"
        )
    return [_changed(member, overrides) for member in members] if overrides else list(members)


def _changed(member: Member, overrides: Sequence[str]) -> Member:
    before = from_dict(member.content["config"], where=str(member.where))
    config = load_as(RunConfig, check_run, None, overrides, tree=to_dict(before))
    if config.infer.patch is None:
        config = dataclasses.replace(config, infer=dataclasses.replace(config.infer, patch=config.sample.patch))
    problems = check_network(planned_run(config, str(member.where)), member.content["spatial_dims"])
    if problems:
        raise ValueError(f"{member.where}: {problems[0]}")
    return dataclasses.replace(member, content={**member.content, "config": to_dict(config)})
