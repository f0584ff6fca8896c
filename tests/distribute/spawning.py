"""A script that starts ranks of its own functions without a guard, in several ways, and prints what came of it.

The tests run its text by `python -c` too: a `__main__` without a file, as a notebook's is.
"""

import json
import os
import sys
import time

import torch
from torch import distributed

from hasten.distribute.spawn import RankFailed, spawn_ddp

SCALE = 10.0
if os.environ.get("HASTEN_SPAWNED"):
    print("the script was run again in a rank")


class Answer:
    """Of `__main__`: no module holds it that a rank could import."""

    def __init__(self, total: float, places: list[tuple[str, str]]) -> None:
        self.total, self.places = total, places


def add(own: float, *, factor: float) -> Answer:
    print("hello from rank", os.environ["RANK"])
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    total = torch.tensor([own + rank]) * factor * SCALE
    distributed.all_reduce(total)
    places: list = [None] * distributed.get_world_size()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    distributed.all_gather_object(places, [os.environ[name] for name in names])
    if rank:
        return Answer(-1.0, [])
    return Answer(float(total), places)


def fail() -> None:
    distributed.init_process_group("gloo")
    if distributed.get_rank() == 1:
        raise KeyError("the second rank's own")
    # Learns of it only as the other's connection ends.
    distributed.all_reduce(torch.ones(1))


def vanish() -> None:
    if os.environ["RANK"] == "1":
        print("last words", flush=True)
        os.kill(os.getpid(), 9)
    time.sleep(60)


def error_of(work) -> list[str]:
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error), type(error.__cause__).__name__]
    return []


def nested() -> None:
    spawn_ddp(fail, nprocs=2)


which = sys.argv[1:]
results: dict = {}
if "add" in which:
    answer = spawn_ddp(add, 1.0, factor=2.0, nprocs=2, timeout_s=300)
    results["add"] = [answer.total, answer.places, isinstance(answer, Answer)]
if "fail" in which:
    results["fail"] = error_of(lambda: spawn_ddp(fail, nprocs=2, timeout_s=300))
    assert issubclass(RankFailed, RuntimeError)
if "nested" in which:
    results["nested"] = error_of(lambda: spawn_ddp(nested, nprocs=1, timeout_s=300))
if "vanish" in which:
    results["vanish"] = error_of(lambda: spawn_ddp(vanish, nprocs=2, timeout_s=300))
if "late" in which:
    results["late"] = error_of(lambda: spawn_ddp(time.sleep, 60, nprocs=1, timeout_s=0.5))
print(json.dumps(results))
