"""One of two ranks that go through the checks of several tests, as starting ranks takes longer than any of them.

`python -m tests.distribute.pair FOLDER`. FOLDER is empty, and the same for both.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed

from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.world import detect_world
from tests.distribute import consensus_checks, ddp_checks
from tests.distribute.ranks import tell


def main() -> None:
    torch.set_num_threads(1)
    world, config, device = detect_world(), DistributeConfig(timeout_s=300), torch.device("cpu")
    with process_group(world, config, device):
        # Joined already: it is this group, and stays.
        with process_group(world, config, device):
            pass
        results = {
            "still": distributed.is_initialized(),
            "agree": consensus_checks.findings(world, Path(sys.argv[1])),
            "ddp": ddp_checks.findings(world),
        }
    results["left"] = not distributed.is_initialized()
    tell(results)


if __name__ == "__main__":
    main()
