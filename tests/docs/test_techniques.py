"""The page of techniques: every test, setting, verb, finding and Python name that it gives exists."""

from __future__ import annotations

import functools
import importlib
import re

import pytest

from tests.docs.commands import mistake
from tests.docs.reading import DOCS, ROOT, spans

PAGE = DOCS / "techniques.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| (?!technique)\S", line)]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def python_name(dotted: str) -> bool:
    """Whether it is a module or what one holds."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            result = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(result, part):
                return False
            result = getattr(result, part)
        return True
    return False


@functools.cache
def sources() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))


@functools.cache
def settings() -> set[str]:
    import reference_pages

    return reference_pages.setting_names()


@functools.cache
def findings() -> set[str]:
    """Names of everything that a doctor can find, from its sources."""
    result = "".join(path.read_text() for path in (ROOT / "src/hasten/doctor").rglob("*.py"))
    return named_in(result) | set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', result))


def named_in(source: str) -> set[str]:
    """Names with which findings are made in so many words."""
    made = r'Finding\(\s*(?:name=)?"([a-z]+(?:-[a-z]+)*)"'
    return set(re.findall(made, source))


def unknown(token: str) -> str:
    """What is wrong with a code span; empty where it names something that is there."""
    if token.startswith("hasten "):
        said = mistake(token)
        return "" if "is missing" in said else said  # cut short
    if token.startswith("hasten."):
        return "" if python_name(token) else "no such Python name"
    if token.startswith(("tests/", "benchmarks/", "examples/")):
        return "" if (ROOT / token).exists() else "no such file"
    if re.match(r"[a-z_]+\.[a-z0-9_.]+(=|$)", token) and not token.endswith((".json", ".py")):
        return "" if token.split("=")[0] in settings() else "no such setting"
    if token.startswith("make "):
        return "" if re.search(rf"^{token[5:]}:", (ROOT / "Makefile").read_text(), re.M) else "no such target"
    if token.startswith("HASTEN_"):
        return "" if token in sources() else "nothing reads it"
    if token in FOREIGN:
        return ""
    return "" if token in findings() else "neither a setting, a verb, a finding nor a Python name"


FOREIGN = {"summary.json", "device=", "torchrun", "item", "print"}
"""Spans that name something of others, or part of what stands beside them."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", " ", cells(row)[0])[:60])
def test_row(row: str) -> None:
    technique, ours, *rest = cells(row)
    if len(rest) == 2:
        tests = rest[0]
        assert re.findall(r"`tests/[\w/]+\.py`", tests), f"{technique}: no test"
        assert "`" in ours or "replaced by" in ours or "](" in ours, f"{technique}: no name of ours"
        assert all(span.startswith("tests/") for span in spans(tests))
    wrong = {span: problem for span in spans(row) if (problem := unknown(span))}
    assert wrong == {}


def test_the_page_lists_them_all() -> None:
    """The names that the guides use, each somewhere on the page."""
    text = PAGE.read_text().lower()
    named = """DLProf|Nsight|NVTX|NVML|LMDB|SmartCache|GPU memory|disk|ThreadDataLoader|transforms on the GPU|cuCIM
    |mixed precision|cross-entropy|focal|NovoGrad|cuDNN autotuning|larger batches|LARS|LAMB|no bias before a norm
    |set to None|debugging|fused optimizers|fused pointwise|activation checkpointing|rather than DataParallel|IoU
    |load balance|SyncBatchNorm|sharded|Horovod|torchrun|SLURM|monitoring|TF32|channels-last|pinned memory
    |worker processes|no gradient|CUDA graphs|OpenMP|GPUDirect|TensorBoard|MLflow|FROC|ColorJitter
    |deep supervision|linear scaling"""
    missing = [each.strip() for each in named.split("|") if each.strip().lower() not in text]
    assert missing == []


def test_the_bottleneck_guide_has_every_finding_and_no_other() -> None:
    given = set(re.findall(r"^\| (`[^|]+) \|", (DOCS / "bottlenecks.md").read_text(), flags=re.M))
    results = {span for cell in given for span in spans(cell)}
    named = named_in("".join(path.read_text() for path in (ROOT / "src/hasten/doctor").rglob("*.py")))
    assert len(named) > 15
    assert sorted(named - results) == []
    assert sorted(results - findings()) == []
