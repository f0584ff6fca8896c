"""Scripts like those that people publish, with labels of what is wrong in each: precision and recall of the doctor.

A script says behind its lines what is wrong there: `# label: KIND HARDWARE CERTAINTY; ...`, on a line of its own for
the code after it. KIND is a finding's name. HARDWARE is `both`, `cpu`, `gpu` (costs time only there) or `cores2` (both,
with two cores or more). CERTAINTY is `sure` (to be named), `likely` (right to name) or `maybe` (neither).
`# verdict: A|B` gives the verdicts that are right, `# control` a script of which nothing unlabelled may be named, and
`# torchrun` one that runs as two ranks. A kind counts once a script, however many of its lines are labelled.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from hasten.doctor.finding import Finding

SCRIPTS = ROOT / "corpus"
MEETS = {
    "cudnn-benchmark-off": ("deterministic",),
    "repeat-work": ("recreate",),
    "uncached-items": ("uncached-transforms",),
    "host-metric": ("host-read",),
    "histograms": ("host-metric",),
    "host-read": ("host-metric",),
}
"""Other names of findings that meet a label: one finding tells both, or which of the two depends on the hardware."""
MEASURED = ("no-autocast", "no-channels-last", "small-batch", "slow-kernels", "spinning-threads")
"""Kinds that an experiment finds on the machine at hand: beside the labels they are neither right nor wrong."""
LOOSE = ("conv-bias-before-norm",)
"""Kinds whose place is where the network's class lies, maybe in another file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    kind: str
    line: int
    hardware: str
    certainty: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    path: Path
    verdicts: tuple[str, ...]
    labels: tuple[Label, ...]
    control: bool
    ranks: bool

    @property
    def command(self) -> list[str]:
        if self.ranks:
            torchrun = str(Path(sys.executable).with_name("torchrun"))
            return [torchrun, "--standalone", "--nproc-per-node=2", str(self.path)]
        return [sys.executable, str(self.path)]


def scripts(half: str) -> list[Script]:
    """Those of a half: "s", for which the rules were made, or "b", the blind one. Raises ValueError for no verdict."""
    return [read(path) for path in sorted(SCRIPTS.glob(f"{half}[0-9]*.py"))]


def read(path: Path) -> Script:
    text = path.read_text(encoding="utf-8")
    verdict = re.search(r"^# verdict: (\S+)$", text, re.MULTILINE)
    if verdict is None:
        raise ValueError(f"{path}: has no line `# verdict: ...`")
    return Script(
        path=path,
        verdicts=tuple(verdict.group(1).split("|")),
        labels=tuple(_labels(text.splitlines())),
        control=re.search(r"^# control$", text, re.MULTILINE) is not None,
        ranks=re.search(r"^# torchrun$", text, re.MULTILINE) is not None,
    )


def _labels(lines: Sequence[str]) -> Iterator[Label]:
    for number, line in enumerate(lines, start=1):
        code, mark, message = line.partition("# label: ")
        for one in message.partition("  #")[0].split(";") if mark else ():
            kind, hardware, certainty = one.split()
            if hardware == "cores2":
                hardware, certainty = "both", certainty if len(os.sched_getaffinity(0)) > 1 else "maybe"
            yield Label(
                kind=kind, line=number if code.strip() else _next(lines, number), hardware=hardware, certainty=certainty
            )


def _next(lines: Sequence[str], number: int) -> int:
    """The number of the first line of code behind line `number`."""
    while lines[number].strip().startswith("#"):
        number += 1
    return number + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Of one script on one kind of hardware, by kinds. What is named and labelled `maybe` counts nowhere.

    One kind may have several lines that are right, as where a validation is called, begins, or loops.
    """

    right: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """Those of `right` at another line than the label."""
    wrong: tuple[str, ...]
    met: tuple[str, ...]
    missed: tuple[str, ...]


def score(script: Script, findings: Sequence[Finding], gpu: bool) -> Score:
    """Findings and notes alike are named; on a CPU a note of what costs only on a GPU is neither right nor wrong."""
    here = ("both", "gpu") if gpu else ("both", "cpu")
    right, elsewhere, wrong, met = [], [], [], set()
    for finding in findings:
        known = [label for label in script.labels if _names(script, finding, label)]
        message = f"{finding.name} at {Path(finding.where).name or 'no line'}"
        if any(label.hardware in here and label.certainty != "maybe" for label in known):
            right.append(message)
            elsewhere += [message] * (not any(_at(finding, label) for label in known))
            met |= {label.kind for label in known if label.hardware in here}
        elif finding.name in MEASURED and finding.gain is not None:
            continue
        elif not known or (finding.level == "finding" and not any(label.hardware in here for label in known)):
            wrong.append(message)
    sure = {label.kind for label in script.labels if label.certainty == "sure" and label.hardware in here}
    return Score(
        right=tuple(right),
        elsewhere=tuple(elsewhere),
        wrong=tuple(wrong),
        met=tuple(sorted(sure & met)),
        missed=tuple(sorted(sure - met)),
    )


def _names(script: Script, finding: Finding, label: Label) -> bool:
    if finding.name != label.kind and finding.name not in MEETS.get(label.kind, ()):
        return False
    return finding.name in LOOSE or Path(finding.where).name.partition(":")[0] == script.path.name


def _at(finding: Finding, label: Label) -> bool:
    return finding.name in LOOSE or finding.where.rpartition(":")[2] == str(label.line)


def modules_to_install(chosen: Sequence[Script]) -> list[str]:
    """Those that scripts import at the top and that are not here; such a script would count as misjudged."""
    texts = [script.path.read_text(encoding="utf-8") for script in chosen]
    names = {name for text in texts for name in re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)}
    return sorted(name for name in names if not (SCRIPTS / f"{name}.py").exists() and find_spec(name) is None)


def judged_corpus(half: str, *, steps: int, seconds: float, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Each script of a half watched once as it is, and judged both for this CPU and as `--for cuda` would.

    Raises ValueError for one that can't be judged, as it crashes or what it imports is not installed.
    """
    from hasten.doctor.script import run_script
    from hasten.doctor.script.doctor import judge

    chosen = [one for one in scripts(half) if not names or any(name in one.path.stem for name in names)]
    absent = modules_to_install(chosen)
    if absent:
        raise ValueError(f"{SCRIPTS}: scripts import {', '.join(absent)}; install them: pip install -e '.[corpus]'")
    results = []
    for script in chosen:
        run = run_script(script.command, steps=steps, seconds=seconds, quiet=True)
        if run.ended == "crashed":
            raise ValueError(f"{script.path}: crashed, so that nothing can be judged: {run.output[-500:]}")
        for gpu in (False, True):
            records = [dataclasses.replace(record, assume_cuda=gpu) for record in run.records]
            output = judge(dataclasses.replace(run, records=records))
            bound = output.diagnosis.bound if output.diagnosis else run.ended
            one = score(script, output.findings, gpu)
            facts = {
                "script": script.path.stem,
                "hardware": "gpu" if gpu else "cpu",
                "control": script.control,
                "bound": bound,
                "verdict": bound in script.verdicts,
                "seconds": run.seconds,
                "sentence": output.diagnosis.sentence if output.diagnosis else run.output[-500:],
            }
            results.append(facts | dataclasses.asdict(one))
            print(*results[-1].values(), file=sys.stderr, flush=True)
    return results


def rates(result: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Shares of 1: of the verdicts right, of what is named right (precision), of what is sure named (recall), of what
    is right at its label's line.
    """
    right, wrong, met, missed = (sum(len(one[word]) for one in result) for word in ("right", "wrong", "met", "missed"))
    return {
        "verdicts": sum(one["verdict"] for one in result) / max(1, len(result)),
        "precision": right / max(1, right + wrong),
        "recall": met / max(1, met + missed),
        "at the label's line": 1 - sum(len(one["elsewhere"]) for one in result) / max(1, right),
        "named of controls": float(sum(len(one["wrong"]) for one in result if one["control"])),
    }
