"""Trainings that are killed, resumed, and started twice in one folder; caches that are killed while they are built."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.trial.base import CASES, LONG, WIDE, copied, steps_of, train_args, wait_for_step
from benchmarks.trial.judge import Ended, Verdict, judge, message_lines
from benchmarks.trial.run import Box, Process, Trial

_STEPS = 160
_MOST_S = 90.0


def _verdict(verdict: str, why: str, ended: Ended | None = None) -> Verdict:
    return Verdict(verdict=verdict, why=why, output=message_lines(ended.text)[:8] if ended else ())


def _start(box: Box, out: str = "out", *more: str) -> Process:
    return box.start(["train", str(box.base / "volumes"), "--out", out, "--quiet", *LONG, *more])


def _resume(box: Box, out: str = "out") -> Process:
    return box.start(["train", "--out", out, "--resume", "--quiet"])


def _record_fault(run: Path) -> str:
    """What is wrong with the metrics of a finished run: each step of training is there once, in order."""
    steps = [step for step, _ in steps_of(run)]
    if steps != sorted(set(steps)):
        return "steps are written twice or out of order: records of two runs are mixed"
    if not steps or steps[-1] != _STEPS:
        return f"the last step on record is {steps[-1] if steps else 'none'} of {_STEPS}"
    return ""


def _same_state(one: Path, other: Path) -> bool:
    import torch

    from hasten.checkpoint.file import read_checkpoint

    def tensors(value: object) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            for item in value.values():
                yield from tensors(item)

    pairs = [list(tensors(read_checkpoint(run / "checkpoints" / "last.pt"))) for run in (one, other)]
    return len(pairs[0]) == len(pairs[1]) and all(map(torch.equal, *pairs))


def _killed(number: int, seed: int, times: int, box: Box) -> Verdict:
    """Stopped by a signal at a random moment, `times` in a row, then resumed: bit for bit the undisturbed run."""
    draw = random.Random(seed)
    training, run = _start(box), box.folder / "out"
    for turn in range(times):
        wait_for_step(run, draw.randrange(1, _STEPS * (turn + 1) // (times + 1)))
        time.sleep(draw.random() * 0.02)
        training.send(number)
        ended = training.wait(_MOST_S)
        if ended.hang:
            return _verdict("hang", f"did not end after signal {number}", ended)
        if number != signal.SIGKILL and "Traceback" in ended.text:
            return judge(ended, expect="either", names=())
        training = _resume(box)
    ended = training.wait(_MOST_S)
    if "no such checkpoint" in ended.text:
        return _verdict("handled", "killed before the first checkpoint")
    if ended.code or ended.hang:
        return judge(ended, expect="accepted", names=())
    fault = _record_fault(run)
    if not fault and not _same_state(run, box.base / "long-run"):
        fault = "other weights than the undisturbed run has"
    return _verdict("damage", fault, ended) if fault else _verdict("handled", "")


def _collision(first: Callable[[Box], Process], second: Callable[[Box], Process], delay: str, box: Box) -> Verdict:
    """Two processes in one folder: one wins, and its records are whole; the other is refused and says why."""
    one = first(box)
    if delay == "live":
        wait_for_step(box.folder / "out", 20)
    two = second(box)
    ended = [process.wait(_MOST_S) for process in (one, two)]
    if any(each.hang for each in ended):
        return _verdict("hang", "one of the two did not end", next(each for each in ended if each.hang))
    for each in ended:
        if "Traceback" in each.text or each.code < 0:
            return judge(each, expect="either", names=("out",))
    if all(each.code == 0 for each in ended):
        return _verdict("damage", "both trained in one folder, with exit code 0", ended[1])
    if all(each.code for each in ended):
        return _verdict("damage", "neither of the two went through", ended[0])
    fault = _record_fault(box.folder / "out")
    loser = next(each for each in ended if each.code)
    return _verdict("damage", fault, loser) if fault else judge(loser, expect="refused", names=("out",))


def _resume_stopped(box: Box) -> Process:
    if not (box.folder / "out").exists():
        copied(box, "stopped-run", "out")
    return _resume(box)


def _stale_lock(box: Box) -> Verdict:
    """A killed run must not stand in the way of its own resumption, from whatever it left."""
    training = _start(box)
    wait_for_step(box.folder / "out", 20)
    training.send(signal.SIGKILL)
    training.wait()
    ended = _resume(box).wait(_MOST_S)
    fault = "" if ended.code else _record_fault(box.folder / "out")
    return _verdict("damage", fault, ended) if fault else judge(ended, expect="accepted", names=())


def _other_words(words: tuple[str, ...], box: Box) -> Verdict:
    """Reading a live run disturbs neither the reader nor the run."""
    training = _start(box)
    wait_for_step(box.folder / "out", 20)
    reader = box.start([word.replace("BASE", str(box.base)) for word in words]).wait()
    ended = training.wait(_MOST_S)
    fault = _record_fault(box.folder / "out") if ended.code == 0 else f"the run ended with exit code {ended.code}"
    return _verdict("damage", fault, ended) if fault else judge(reader, expect="either", names=("out",))


def _folder_gone(box: Box) -> Verdict:
    """The run's folder is removed while it trains."""
    training = _start(box)
    wait_for_step(box.folder / "out", 20)
    shutil.rmtree(box.folder / "out", ignore_errors=True)
    return judge(training.wait(_MOST_S), expect="refused", names=("out",))


def _data_gone(box: Box) -> Verdict:
    """A case's files are removed while the cache is built."""
    data = copied(box, "volumes", "set")
    process = box.start(train_args("set"))
    for case in CASES:
        (data / "imagesTr" / f"{case}.nii.gz").unlink(missing_ok=True)
    return judge(process.wait(_MOST_S), expect="either", names=CASES)


def _build(box: Box, out: str) -> Process:
    return box.start(["train", str(box.base / "volumes"), "--out", out, "--quiet", *WIDE])


def _built_after(number: int, seed: int, box: Box) -> Verdict:
    """Stopped while the cache is built; the next run goes on with it, and trains as if nothing had been."""
    process = _build(box, "first")
    end = time.monotonic() + 30
    while time.monotonic() < end and not any((box.folder / "cache").rglob("*.bin*")):
        time.sleep(0.001)
    time.sleep(random.Random(seed).random() * 0.25)
    process.send(number)
    first = process.wait(_MOST_S)
    if first.hang or (number != signal.SIGKILL and "Traceback" in first.text):
        return judge(first, expect="either", names=())
    after = _build(box, "after").wait(_MOST_S)
    if after.code or after.hang:
        return judge(after, expect="accepted", names=())
    same = steps_of(box.folder / "after") == steps_of(box.base / "wide-run")
    return _verdict("handled", "") if same else _verdict("damage", "trained on a cache that is not whole", after)


def _built_together(count: int, box: Box) -> Verdict:
    """Several processes want the same entry at once."""
    ended = [process.wait(_MOST_S) for process in [_build(box, f"out-{at}") for at in range(count)]]
    bad = next((each for each in ended if each.code or each.hang), None)
    if bad is not None:
        return judge(bad, expect="accepted", names=())
    runs = [steps_of(box.folder / f"out-{at}") for at in range(count)]
    same = all(run == steps_of(box.base / "wide-run") for run in runs)
    return _verdict("handled", "") if same else _verdict("damage", "trainings on one cache differ")


READERS = (
    ("watch", "out", "--once"), ("report", "out", "--out", "page.html"), ("export", "out", "--out", "w.safetensors"),
    ("predict", "out", "BASE/volumes/imagesTr", "--out", "masks"), ("cache", "verify"), ("cache", "prune", "--max-gib",
        "0"),
)  # fmt: skip


def trials() -> Iterator[Trial]:
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        for seed in range(5):
            yield Trial("kills", f"{number.name}/once/{seed}", partial(_killed, number, seed, 1))
        yield Trial("kills", f"{number.name}/three-times", partial(_killed, number, 9, 3))
    yield Trial("kills", "SIGHUP/once", partial(_killed, signal.SIGHUP, 3, 1))
    for seed in range(3):
        yield Trial("collisions", f"two-trainings/{seed}", partial(_collision, _start, _start, "at once"))
        yield Trial(
            "collisions", f"two-resumptions/{seed}", partial(_collision, _resume_stopped, _resume_stopped, "at once")
        )
    yield Trial("collisions", "training-beside-a-live-one", partial(_collision, _start, _start, "live"))
    yield Trial("collisions", "resumption-of-a-live-run", partial(_collision, _start, _resume, "live"))
    yield Trial("collisions", "resumption-of-a-live-resumption", partial(_collision, _resume_stopped, _resume, "live"))
    yield Trial("collisions", "lock-of-a-killed-run", _stale_lock)
    for words in READERS:
        yield Trial("collisions", f"live-run/{' '.join(words[:2])}", partial(_other_words, words))
    yield Trial("collisions", "folder-removed", _folder_gone)
    yield Trial("collisions", "data-removed", _data_gone)
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        for seed in range(6):
            yield Trial("builds", f"{number.name}/{seed}", partial(_built_after, number, seed))
    for count in (2, 4):
        yield Trial("builds", f"{count}-at-once", partial(_built_together, count))
