"""Findings on lines of user code where the host works and the network waits, from samples of the training thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hasten.doctor.finding import Finding, ms
from hasten.doctor.script.findings.calls import MAPS, OFTEN
from hasten.doctor.script.records import ProcessRecord, place

SHARE = 0.05
"""Share of the training step from which a line's work on the host is a note, and of the whole time for a finding."""
HEAVY = 0.25
"""Share of the time from which it is too much work wherever it is done."""
FEW = 4
"""Fewest samples for which a line's time is meaningful."""
EVERY = 0.005
"""Seconds between samples."""
AGAIN = 1.5
"""Mean number of times a file is opened from which it counts as read again and again."""
LOOP_STEPS = 2
"""Steps in which the operations of loops are counted."""
COPIES = 8
"""Copies in a validation round from which maps count as copied one by one."""
HOST = (
    *("numpy", "scipy", "skimage", "PIL", "cv2", "sklearn", "zipfile", "gzip", "zlib", "nibabel", "SimpleITK"),
    *("h5py", "pandas", "imageio", "numba", "multiprocessing", "queue", "threading"),
)
PLOTS = ("matplotlib", "seaborn", "plotly")
_FILES_READ_AGAIN = Finding(
    "uncached-items", "the same files are read and unpacked again and again", "read each once, and keep it in memory"
)
_SYNC_PLOT = Finding(
    "sync-plot", "the training waits while pictures are drawn or written", "do it less often, or in another process"
)
_PYTHON_LOOP = Finding(
    "python-loop", "a loop gives torch many small pieces of work", "one operation on all, or torch._foreach_*"
)
_LOOP_LOADS = Finding(
    "no-workers", "the training's own process prepares data here", "do it in a DataLoader(..., num_workers=2)"
)
_COPIED_MAPS = Finding(
    "host-metric",
    "score maps are copied to the host one after another in validation rounds",
    "compute the metric on the device (torchmetrics, monai.metrics), and copy only what is shown",
)
_HOST_METRIC = Finding(
    "host-metric",
    "tensors are copied to the host and worked on there, while the network waits",
    "work on them on the device (torchmetrics, monai.metrics, torch.histc), and copy only what is shown",
)
_LOOP_HEAVY = Finding(
    "heavy-items",
    "making the data takes much of the time, and where there are few cores workers don't hide it",
    "keep what is the same each time, uncompressed, and transform a batch at a time with torch",
)


def find(record: ProcessRecord) -> list[Finding]:
    """sync-plot, host-metric, python-loop, and no-workers, uncached-items and heavy-items of the loop itself."""
    findings: list[Finding] = []
    places: set[str] = set()
    for where in ("step", "validation"):
        for site, packages in _by_site(record, where).items():
            if place(site) in places:
                continue
            matches = list(_plot(record, site, packages)) or list(_metric(record, site, packages, where))
            if where == "step" and not matches:
                matches = list(_python_loop(record, site, packages)) or list(_loading(record, site, packages))
            findings += matches
            places |= {finding.where for finding in matches}
    return findings + [each for each in _copied_maps(record) if each.where not in places]


def _by_site(record: ProcessRecord, where: str) -> dict[str, Counter[str]]:
    """Seconds of each line by package; "" is the line itself."""
    sites: dict[str, Counter[str]] = {}
    for line in record.listed("lines"):
        if line["where"] == where:
            sites.setdefault(line["site"], Counter())[line["package"]] += line["seconds"]
    return sites


def _cost(record: ProcessRecord, seconds: float) -> float | None:
    """Seconds of a step, if there are enough samples and the share is large enough.

    Waiting for data and long validations are excluded, so that they don't hide it.
    """
    cost = record.per_step(seconds)
    return cost if seconds >= FEW * EVERY and cost >= SHARE * (record.train_s - record.part("wait")) else None


def _finding(record: ProcessRecord, cost: float | None, text: Finding, site: str, *, evidence: str) -> Finding:
    level = "finding" if cost is not None and cost >= SHARE * record.step_s else "note"
    return record.finding(text, site, evidence=evidence, cost_s=cost, level=level)


def _plot(record: ProcessRecord, site: str, packages: Counter[str]) -> Iterator[Finding]:
    calls = (each["count"] for each in record.listed("calls") if (each["kind"], each["site"]) == ("written", site))
    written = record.per_step(sum(calls))
    cost = _cost(record, sum(packages[name] for name in (*PLOTS, *HOST) if written >= OFTEN or name in PLOTS))
    if cost is not None:
        yield _finding(record, cost, _SYNC_PLOT, site, evidence=f"{written:.1f} files and {ms(cost)} a step")


def _python_loop(record: ProcessRecord, site: str, packages: Counter[str]) -> Iterator[Finding]:
    cost = _cost(record, sum(packages.values()))
    count = sum(each["count"] for each in record.listed("loops") if each["site"] == site) / LOOP_STEPS
    if cost is not None and count:
        evidence = f"{count:.0f} operations and {ms(cost)} a step by instructions that it repeats"
        yield _finding(record, cost, _PYTHON_LOOP, site, evidence=evidence)


def _metric(record: ProcessRecord, site: str, packages: Counter[str], where: str) -> Iterator[Finding]:
    """Maps that are read from the device at this line, and what the host then does with them."""
    validating = where == "validation"
    reads = any(
        read.get("loop") == site and read.get("elements", 0) >= MAPS and read.get("validating", False) == validating
        for read in record.listed("reads")
    )
    host = sum(packages[name] for name in HOST)
    cost = _cost(record, sum(packages.values()) if reads else host)
    if cost is not None and (reads or (host and (validating or _of_scores(record, site)))):
        evidence = f"{ms(cost)} a step{' of validation rounds' if validating else ''}"
        yield _finding(record, cost, _HOST_METRIC, site, evidence=evidence)


def _of_scores(record: ProcessRecord, site: str) -> bool:
    """Whether most of a line's work follows the step's read of a map from the device, so that it prepares no data."""
    own = [each for each in record.listed("lines") if each["site"] == site and each["where"] == "step"]
    after = sum(each["seconds"] for each in own if each.get("read"))
    return bool(record.training_loaders) and after > 0.5 * sum(each["seconds"] for each in own)


def _copied_maps(record: ProcessRecord) -> Iterator[Finding]:
    """Score maps copied in validation rounds; on a GPU each copy is waited for, whatever the host then does with it."""
    rounds = len(record.listed("validations"))
    sites: dict[str, int] = {}
    for read in record.listed("reads") if record.cuda else ():
        many = read.get("elements", 0) >= MAPS and read["count"] >= COPIES * max(1, rounds)
        if read.get("validating") and many:
            sites[read["site"]] = max(sites.get(read["site"], 0), read["count"])
    for site, count in sites.items():
        yield record.finding(_COPIED_MAPS, site, evidence=f"{count} copies in {rounds} rounds", level="note")


def _loading(record: ProcessRecord, site: str, packages: Counter[str]) -> Iterator[Finding]:
    cost = _cost(record, sum(packages[name] for name in HOST))
    if cost is None:
        return
    names = ", ".join(name for name, _ in packages.most_common(3) if name in HOST)
    evidence = f"{ms(cost)} of a step of {ms(record.step_s)} in {names}"
    waits = packages["multiprocessing"] + packages["threading"] + packages["queue"]
    if record.per_step(waits) < cost / 2:
        yield _finding(record, cost, _LOOP_LOADS, site, evidence=evidence)
    opened = next((each for each in record.listed("opened") if each["site"] == site), None)
    if opened and opened["opens"] >= AGAIN * opened["files"] and record.per_step(opened["opens"]) >= 1:
        times = f"{opened['files']} files opened {opened['opens']} times in {record.steps} steps"
        yield _finding(record, cost, _FILES_READ_AGAIN, site, evidence=times)
    if cost >= HEAVY * record.step_s:
        yield _finding(record, cost, _LOOP_HEAVY, site, evidence=evidence)
