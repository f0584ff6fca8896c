"""A rank that compares what must be the same on all hosts: `python -m tests.distribute.launch.facts_rank`."""

from __future__ import annotations

import dataclasses

import torch

from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import DistributeConfig, RunConfig
from hasten.distribute.consensus import OtherRankFailed, require_same
from hasten.distribute.group import process_group
from hasten.distribute.launch.job_fingerprint import start_facts
from hasten.distribute.world import detect_world
from tests.distribute.launch.test_job_fingerprint import FINGERPRINT
from tests.distribute.ranks import tell


def verdict(facts: dict[str, str]) -> str:
    try:
        require_same(detect_world(), facts)
    except OtherRankFailed:
        return "other"
    except ValueError as error:
        return str(error)
    return "same"


def fingerprint_of(rank: int) -> Fingerprint:
    return dataclasses.replace(FINGERPRINT, shapes=((8, 8, 8 + rank),))


if __name__ == "__main__":
    world = detect_world()
    with process_group(world, DistributeConfig(timeout_s=30.0), torch.device("cpu")):
        facts = start_facts(RunConfig(), FINGERPRINT)
        tell(
            {
                "same": verdict(facts),
                "data": verdict(start_facts(RunConfig(), fingerprint_of(world.rank))),
                "code": verdict(facts | {"hasten's code": f"1.0 (abc{world.rank})"}),
            }
        )
