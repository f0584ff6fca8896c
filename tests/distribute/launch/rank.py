"""A rank of a tiny training with all that a launched one has: `rank OUT STEPS [wrong] [slow]`.

`slow`: a step takes a tenth of a second, and a lost peer is found after some seconds.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hasten.cli.ranks import run
from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.launch.watchdog import watchdog_of
from hasten.distribute.world import World, detect_world
from hasten.training.stop import Stopped, StopRequest
from tests.distribute.launch.faults import faults_of

SAVE_EVERY = 4


def main(out: Path, steps: int, *, wrong: bool, slow: bool) -> None:
    world = detect_world()
    if wrong:
        raise ValueError("train.steps: is wrong; put it right")
    config = DistributeConfig(timeout_s=8.0 if slow else 60.0)
    with process_group(world, config, torch.device("cpu")):
        train(world, out, steps, timeout_s=config.timeout_s, pause=0.1 if slow else 0.0)


def train(world: World, out: Path, steps: int, *, timeout_s: float, pause: float) -> None:
    torch.manual_seed(0)
    network = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    saved, first = out / "last.pt", 0
    if saved.exists():
        state = torch.load(saved)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    wrapped = DistributedDataParallel(network) if world.size > 1 else network
    befall, dog = faults_of(world, out / "ranks"), watchdog_of(world, out / "ranks", timeout_s=timeout_s)
    with StopRequest(timeout_s=timeout_s) as stop, dog or nullcontext():
        for step in range(first + 1, steps + 1):
            torch.manual_seed(1000 * step + world.rank)
            wrapped(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if befall is not None:
                befall(step)
            asked = stop.agreed()
            if world.first and (step % SAVE_EVERY == 0 or asked or step == steps):
                content = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(content, out / "new.pt")
                (out / "new.pt").rename(saved)
            if asked:
                (out / f"stopped-{world.rank}").write_text(str(step))
                raise Stopped("", asked)
            if dog is not None:
                dog.beat(step)
            time.sleep(pause)


if __name__ == "__main__":
    out, steps, *words = sys.argv[1:]
    run(lambda: main(Path(out), int(steps), wrong="wrong" in words, slow="slow" in words))
