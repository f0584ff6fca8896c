"""What watching costs a step: a run's own monitor and trackers, and the probe in somebody's script."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import interleave

STEPS = 60
"""In a round."""


def observed_times(rounds: int) -> dict[str, list[float]]:
    """Mean ms of a small step, bare and as in a run: sampled each second, a line to the trackers every other step."""
    import torch
    from monai.networks.nets import UNet

    from hasten.observe.monitor import Monitor
    from hasten.observe.trackers import Tracking

    torch.manual_seed(0)
    net = UNet(3, 1, 3, channels=(16, 32, 64), strides=(2, 2), num_res_units=2, norm="instance")
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    image = torch.randn(2, 1, 32, 32, 32)

    def step() -> None:
        net(image).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def bare() -> float:
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        return 1e3 * (time.perf_counter() - begin) / STEPS

    def observed() -> float:
        done = 0
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            tracking = stack.enter_context(
                Tracking(("tensorboard",), folder, project="overhead", run_name="overhead", config={})
            )
            monitor = Monitor(folder, every=1.0, steps=lambda: done, tell=lambda _: None, send=tracking.log)
            stack.enter_context(monitor)
            begin = time.perf_counter()
            for done in range(STEPS):
                step()
                if done % 2:
                    tracking.log({"kind": "train", "step": done, "time_s": 0.0, "loss": 1.0, "lr": 1e-3})
            return 1e3 * (time.perf_counter() - begin) / STEPS

    return {f"{name}_ms": times for name, times in interleave({"bare": bare, "observed": observed}, rounds).items()}


def probe_times(rounds: int) -> dict[str, list[float]]:
    """Median ms of a step of the plain program, by its own clock: alone, and watched by the doctor."""
    from hasten.doctor.script import run_script

    program = Path(__file__).with_name("plain.py")
    steps = 40

    def run(*, watched: bool) -> float:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "seconds.txt"
            command = [sys.executable, str(program), str(steps), str(out)]
            if watched:
                run_script(command, steps=10 * steps, seconds=300, experiments=False, quiet=True)
            else:
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return 1e3 * statistics.median(float(line) for line in out.read_text().split()[5:])

    arms = {"unwatched": lambda: run(watched=False), "watched": lambda: run(watched=True)}
    return {f"{name}_ms": times for name, times in interleave(arms, rounds, warmup=1).items()}


def sampler_shares(rounds: int) -> dict[str, list[float]]:
    """Processor time of the monitor's thread, in percent of a core, over 20 s at one sample a second."""
    from hasten.observe.monitor import Monitor

    shares = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            with Monitor(Path(folder), every=1.0, tell=lambda _: None) as monitor:
                time.sleep(20)
            shares.append(100 * monitor.cpu_seconds / (time.perf_counter() - begin))
    return {"sampler_percent": shares}


def range_times(rounds: int) -> dict[str, list[float]]:
    """Nanoseconds that a range adds while no profiler looks: to a decorated function, and as a context."""
    from hasten.observe.ranges import Range

    calls = 100_000

    def plain() -> None:
        pass

    ranged = Range("plain")(plain)

    def bare() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            plain()
        return 1e9 * (time.perf_counter() - begin) / calls

    def decorated() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            ranged()
        return 1e9 * (time.perf_counter() - begin) / calls

    def context() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            with Range("plain"):
                plain()
        return 1e9 * (time.perf_counter() - begin) / calls

    times = interleave({"bare": bare, "decorated": decorated, "context": context}, rounds)
    added = {name: [one - base for one, base in zip(times[name], times["bare"], strict=True)] for name in times}
    return {f"range_{name}_ns": added[name] for name in ("decorated", "context")}
