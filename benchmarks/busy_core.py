"""What a training step takes beside another program, and under a quota, with and without Hasten's care of threads.

"after" is Hasten as it starts by itself; "before" has torch's own defaults: a thread for each core, and threads that
spin 300,000 times at each barrier. Each arm is a process that makes steps of the planned run on request, and the arms
take turns: quiet, beside a program that takes one core, and ("after" alone) in a control group with a quota of one
core. The first steps of a turn are not recorded. The quota needs a writable control group (version 1 or 2).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data import phantoms
from benchmarks.harness import Claim, arguments, busy_machine, child_environment, finish, median_ratio
from hasten.observe.cores import allowed_cpus, environment_of_user

SLOWER = 2.2
"""Times of a quiet step that one takes beside a program on one of two cores, or with a quota of one of two."""
QUIET = 1.02
"""Times of today's quiet step that one may take."""
PLACES = ("quiet", "busy", "quota")


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv, rounds={"type": int, "help": "default 8, quick 2"},
        steps={"type": int, "default": 8, "help": "recorded in each turn"},
        unrecorded={"type": int, "default": 10, "help": "steps before those, in which threads follow the load"},
        name={"default": "hippocampus", "help": "of the data set, for the results"},
        limit={"type": float, "default": 420.0, "help": "seconds after which no further round begins"},
        source={"type": Path, "help": "any data set; default --data"}, worker={"help": argparse.SUPPRESS},
    )  # fmt: skip
    if given.worker:
        make_steps(given.worker)
        return
    others = busy_machine()
    with tempfile.TemporaryDirectory() as scratch:
        data = given.source or given.data or phantoms(Path(scratch) / "set", 8, {"shape": (40, 56, 40)})
        rounds = given.rounds or (2 if given.quick else 8)
        results = measure(data, rounds, given.unrecorded, given.steps, time.perf_counter() + given.limit)
    claims = []
    for place in PLACES[1:]:
        ratio = median_ratio(results.get(f"after/{place}_s"), results.get("after/quiet_s"))
        claims.append(Claim.at_most(f"{given.name}: a step, {place} over quiet", ratio, SLOWER))
    ratio = median_ratio(results.get("after/quiet_s"), results.get("before/quiet_s"))
    claims.append(Claim.at_most(f"{given.name}: a quiet step, after over before", ratio, QUIET))
    settings = {"about": __doc__, "steps": given.steps, "unrecorded": given.unrecorded, "cores": len(allowed_cpus())}
    finish(f"busy_core_{given.name}", claims, results, given.out, given.quick, settings=settings, others_before=others)


def measure(data: Path, rounds: int, unrecorded: int, steps: int, end: float) -> dict[str, list[float]]:
    """Mean seconds of a turn's recorded steps, by arm and place. end: when no further round begins."""
    defaults = {"GOMP_SPINCOUNT": "300000", "OMP_NUM_THREADS": str(len(allowed_cpus()))}
    paths = {"PYTHONPATH": child_environment()["PYTHONPATH"]}
    results: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(one_core_group())
        workers: dict[tuple[str, bool], subprocess.Popen[str]] = {}
        for arm, variables in (("before", defaults), ("after", {})):
            for limited in (False, True) if group is not None and arm == "after" else (False,):
                command = [sys.executable, "-m", "benchmarks.busy_core", "--worker", str(data.resolve())]
                if limited:
                    command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *command]
                worker = subprocess.Popen(
                    command, env=environment_of_user() | paths | variables, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                stack.callback(worker.wait)
                stack.callback(worker.kill)
                workers[arm, limited] = worker
                # One after another: two would share the group's one core.
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n", command
        for number in range(rounds):
            if time.perf_counter() > end:
                break
            for place in PLACES:
                for arm in ("before", "after") if number % 2 else ("after", "before"):
                    worker = workers.get((arm, place == "quota"))
                    if worker is None:
                        continue
                    with busy_core() if place == "busy" else contextlib.nullcontext():
                        seconds = turn(worker, unrecorded + steps)[unrecorded:]
                    results.setdefault(f"{arm}/{place}_s", []).append(statistics.fmean(seconds))
                    print(f"{number} {place} {arm}: {statistics.fmean(seconds):.3f} s a step", file=sys.stderr)
    return results


def turn(worker: subprocess.Popen[str], steps: int) -> list[float]:
    """Seconds of each of some steps of a worker."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{steps}\n")
    worker.stdin.flush()
    return [float(word) for word in worker.stdout.readline().split()]


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Another process that takes a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def one_core_group() -> Iterator[Path | None]:
    """The file that takes the processes of a control group with a quota of one core; None where none can be made."""
    for parent, files in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}),
        ("/sys/fs/cgroup", {"cpu.max": "100000 100000"}),
    ):
        folder = Path(parent) / f"hasten-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for name, value in files.items():
                (folder / name).write_text(value)
            yield folder / "cgroup.procs"
            return
        finally:
            time.sleep(0.5)  # the group must be empty
            folder.rmdir()
    yield None


def make_steps(source: str) -> None:
    """Make the run, then as many steps as each line of stdin says, and write the seconds of each."""
    import torch

    from hasten.config.load import load_run
    from hasten.feed.feed import Feed
    from hasten.observe.clock import Clock
    from hasten.runtime.core_follower import cores_followed
    from hasten.training.compose import prepare_run

    many = 10**6
    given = {"train.steps": many, "train.precision": "fp32", "train.channels_last": "true", "train.compile": "false"}
    config = load_run(overrides=[f"data.source={source}", *(f"{name}={value}" for name, value in given.items())])
    with cores_followed(torch.device("cpu")):
        components = prepare_run(config, Clock(None))
        batches = enumerate(Feed(components.program, first=0, last=many))
        print("ready", flush=True)
        for line in sys.stdin:
            seconds = []
            for _ in range(int(line)):
                begin = time.perf_counter()
                index, batch = next(batches)
                float(components.step(batch["image"], batch["label"], index))
                seconds.append(time.perf_counter() - begin)
            print(*seconds, flush=True)


if __name__ == "__main__":
    main()
