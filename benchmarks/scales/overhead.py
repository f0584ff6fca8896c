"""What a step of two ranks costs beyond torch's DistributedDataParallel used by hand.

Both ranks hold the same network several times over, each in DDP, and take steps with them in turn on one batch, one
thread a rank. `bare` is the loop of PyTorch's tutorial: forward, loss, backward, clip, fused AdamW. `hasten` is
`TrainStep` with the strategy ddp, which also leaves out updates that are not finite; `synced` is that with the overlap
counts of the loss added up over the ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARMS = ("bare", "hasten", "synced")
_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 900


def step_times(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each step, until all ranks are through with it, of each arm in the order of the rounds."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "-m", "benchmarks.scales.overhead", str(rounds)],
        cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE_S, check=True,
    )  # fmt: skip
    content: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return content


def _main(rounds: int) -> None:
    import torch
    from torch import distributed

    from hasten.config.schema import DistributeConfig
    from hasten.distribute.group import process_group
    from hasten.distribute.world import detect_world

    world = detect_world()
    with process_group(world, DistributeConfig(), torch.device("cpu")):
        arms = {name: _arm(name, world) for name in ARMS}
        times: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(rounds + 3):
            for name in ARMS if turn % 2 else reversed(ARMS):
                distributed.barrier()
                begin = time.perf_counter()
                arms[name](turn)
                distributed.barrier()
                if turn >= 3:
                    times[name].append(1e3 * (time.perf_counter() - begin))
        if world.first:
            print(json.dumps(times), flush=True)


def _arm(name: str, world: Any) -> Callable[[int], None]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.engines.steps import NETS, batch, build
    from hasten.config.schema import DistributeConfig, LossConfig
    from hasten.distribute.ddp import Ddp
    from hasten.nets.losses.make_loss import build_loss
    from hasten.nets.surgery.operate import operate
    from hasten.training.step import TrainStep
    from hasten.training.update import Update

    network = build(NETS["hippocampus"])
    operate(network)
    image, label = batch(NETS["hippocampus"])
    loss = build_loss(LossConfig(), over_ranks=name == "synced")
    if name == "bare":
        wrapped = DistributedDataParallel(network)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)

        def step(turn: int) -> None:
            loss(wrapped(image), label).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 12.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step
    strategy = Ddp(world, DistributeConfig())
    strategy.place(network, None)
    update = Update(
        weights=network, optimizer=torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True), clip_norm=12.0,
        strategy=strategy,
    )  # fmt: skip
    ours = TrainStep(
        network=strategy.wrap(network), loss=loss, update=update, device=torch.device("cpu"), strategy=strategy
    )

    def own(turn: int) -> None:
        ours(image, label, turn)

    return own


if __name__ == "__main__":
    _main(int(sys.argv[1]))
