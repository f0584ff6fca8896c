"""What trials copy from, made once: tiny data sets of phantoms, and finished runs on them."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.trial.judge import Ended
from benchmarks.trial.run import Box
from hasten.observe.rundir import METRICS_JSONL, read_jsonl

FAST = (
    "train.steps=4", "network.channels=[4,8]", "sample.batch_size=2", "train.precision=fp32",
    "train.channels_last=false", "train.compile=false", "train.validate_every=2",
    "observe.monitor_every=0", "observe.trackers=[]", "train.device=cpu",
)  # fmt: skip
"""Settings of a training that takes about a second: nothing is measured or compiled."""
TINY = (*FAST, "sample.patch=[8,16,16]")
TINY_2D = (*FAST, "sample.patch=[1,32,32]")
CASES = tuple(f"phantom_{number:03d}" for number in range(4))
"""Of `volumes` (3-D: images .nii.gz of 8x16x16, class spleen) and of `pictures` (2-D: .png of 32x32)."""


def warm_up() -> None:
    """Import in this process what the trials' forks need, and start no thread."""
    import fsspec.implementations.zip  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import monai.networks.nets  # noqa: F401
    import nibabel  # noqa: F401
    import onnxruntime  # noqa: F401
    import SimpleITK
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off for what runs behind it
    SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(1)


def make_base(folder: Path) -> Path:
    """Write the base into an empty folder; its path. Raises RuntimeError if Hasten can't even do that."""
    from hasten.phantoms.cells import write_cells
    from hasten.phantoms.organs import write_phantoms

    folder.mkdir(parents=True)
    write_phantoms(folder / "volumes", num_cases=4, shape=(8, 16, 16), spacing=(1.0, 1.0, 1.0), num_threads=1)
    write_cells(folder / "pictures", num_cases=4, shape=(32, 32), radius=8, num_threads=1)
    for file in (folder / "pictures").glob("*/*.png"):
        file.rename(file.with_name(file.name.replace("cells", "phantom")))
    (folder / "w").mkdir()
    box = Box(folder=folder / "w", base=folder)
    for data, run, settings in (("volumes", "run", TINY), ("pictures", "flat-run", TINY_2D)):
        _done(box.hasten("train", str(folder / data), "--out", str(folder / run), *settings, seconds=300))
    _stopped_run(box)
    return folder


def _done(ended: Ended) -> None:
    if ended.code:
        raise RuntimeError(f"a run that trials copy failed: {ended.text}")


LONG = (*TINY, "train.steps=160", "train.validate_every=40", "train.checkpoint_every=5")
"""Of a training of two to four seconds, long enough to be stopped in the middle."""


def _stopped_run(box: Box) -> None:
    """`stopped-run`, which SIGINT ended before its last step."""
    out = box.base / "stopped-run"
    training = box.start(["train", str(box.base / "volumes"), "--out", str(out), "--quiet", *LONG])
    wait_for_step(out, 90)  # after two validations
    training.send(signal.SIGINT)
    ended = training.wait(60)
    if ended.code not in (0, 130) or not (out / "checkpoints" / "last.pt").is_file():
        raise RuntimeError(f"the run to be stopped: {ended}")


def wait_for_step(run: Path, step: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and all(row.get("step", 0) < step for row in read_jsonl(run / METRICS_JSONL)):
        time.sleep(0.01)


def copied(box: Box, name: str, to: str = "") -> Path:
    """A copy of something of the base in the trial's folder."""
    target = box.folder / (to or name)
    shutil.copytree(box.base / name, target)
    return target


def image_of(data: Path, case: str) -> Path:
    return next(path for path in sorted(data.glob("images*/*")) if path.name.startswith(case))


def label_of(data: Path, case: str) -> Path:
    return next(path for path in sorted(data.glob("labels*/*")) if path.name.startswith(case))


def entries(data: Path) -> list[dict[str, str]]:
    """The cases of a data set of the base, as in a JSON list with absolute names."""
    return [{"id": case, "image": str(image_of(data, case)), "label": str(label_of(data, case))} for case in CASES]


def write_list(box: Box, cases: Any, name: str = "list.json", labels: Any = None) -> str:
    """A JSON list of cases in the trial's folder; its path."""
    declared = {"0": "background", "1": "spleen"} if labels is None else labels
    (box.folder / name).write_text(json.dumps({"labels": declared, "cases": cases}))
    return str(box.folder / name)


def train_args(source: str | Path, *more: str, settings: Sequence[str] = TINY) -> list[str]:
    return ["train", str(source), "--out", "out", "--quiet", *settings, *more]


def plan_args(source: str | Path, *more: str) -> list[str]:
    return ["plan", str(source), "--out", "plan.json", *more]
