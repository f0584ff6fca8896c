"""Trainings with a known fault, and whether the doctor's verdict and findings name it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from hasten.doctor.finding import Finding
from hasten.doctor.time_split import Split, diagnose
from hasten.feed.feed import Feed

SCRIPT_CAUSES = {
    "slow-disk": ("input", ("few-workers", "no-workers", "uncached-items", "uncached-transforms")),
    "zero-workers": ("input", ("no-workers",)),
    "sync": ("sync", ("host-read",)),
    "validation": ("validation", ("validation-share",)),
    "tiny-batch": ("launch", ("small-batch",)),
    "heavy-transform": ("input", ("heavy-items", "few-workers")),
}
"""What the verdict must say of a script, and findings of which one must be there."""
RUN_CAUSES = {
    "validation": ("validation", ()),
    "tiny-batch": ("launch", ()),
    "heavy-transform": ("input", ()),
}
RUN_SETTINGS = {
    "validation": ["train.validate_every=1"],
    "tiny-batch": [
        "sample.batch_size=1", "sample.patch=[16,16,16]", "infer.patch=[40,56,40]", "train.checkpoint_every=3000"
    ],
}  # fmt: skip
TRAIN = Path(__file__).with_name("train.py")


def judged_scripts(data: Path, *, steps: int, quick: bool, faults: Sequence[str] | None) -> list[dict[str, Any]]:
    """Each program with each fault, watched by the doctor as a user would have it watched."""
    from hasten.doctor.script import run_script
    from hasten.doctor.script.doctor import judge

    results = []
    for style in ("plain",) if quick else ("plain", "monai"):
        for fault in faults or ("none", *SCRIPT_CAUSES):
            command = [sys.executable, str(TRAIN), "--data", str(data), "--style", style, "--fault", fault]
            run = run_script(command, steps=steps, seconds=90, quiet=True)
            output = judge(run)
            assert output.split is not None, run.output[-2000:]
            results.append(_outcome(style, fault, output.split, output.findings, SCRIPT_CAUSES))
    return results


def judged_runs(data: Path, *, steps: int, faults: Sequence[str] | None) -> list[dict[str, Any]]:
    """A run of Hasten's own, on a cache that lies ready."""
    from hasten.config.load import load_run
    from hasten.doctor.run.doctor import diagnose_run

    results = []
    with tempfile.TemporaryDirectory(prefix="hasten-judged-") as folder:
        for fault in faults or ("none", *RUN_CAUSES):
            if fault not in ("none", *RUN_CAUSES):
                continue
            common = [f"data.source={data}", f"cache.dir={folder}", "train.steps=3000", "train.validate_every=1500"]
            config = load_run(None, [*common, *RUN_SETTINGS.get(fault, ())])
            heavy = mock.patch.object(Feed, "__iter__", _smoothed) if fault == "heavy-transform" else nullcontext()
            with heavy:
                output = diagnose_run(config, steps=steps, seconds=60)
            results.append(_outcome("hasten", fault, output.split, output.findings, RUN_CAUSES))
    return results


_BATCHES = Feed.__iter__


def _smoothed(feed: Feed) -> Iterator[Any]:
    from benchmarks.doctors.train import smooth

    for batch in _BATCHES(feed):
        yield {**batch, "image": smooth(batch["image"])}


def _outcome(
    training: str, fault: str, split: Split, findings: Sequence[Finding], causes: dict[str, tuple[str, tuple[str, ...]]]
) -> dict[str, Any]:
    output = diagnose(split)
    names = [finding.name for finding in findings if finding.level == "finding"]
    if fault == "none":
        named = output.bound == "compute"
    else:
        bound, wanted = causes[fault]
        named = output.bound == bound and (not wanted or any(name in wanted for name in names))
    print(f"{training} {fault}: {output.sentence} {names}", file=sys.stderr)
    return {
        "training": training,
        "fault": fault,
        "named": named,
        "bound": output.bound,
        "sentence": output.sentence,
        "findings": [f"{finding.name}: {finding.evidence}" for finding in findings if finding.level == "finding"],
        "step_s": split.step_s,
        "parts": split.parts,
    }
