"""Figures in README and docs are those of the committed results; a file that is stale is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import benchmark_tables
import pytest

from tests.docs.reading import ROOT


def tool(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tools/benchmark_tables.py"
    return subprocess.run([sys.executable, str(script), "--root", str(root), *words], capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the tool reads and writes, apart from the repository."""
    for part in ("docs", "benchmarks/results"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("_build"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_readme_and_docs_say_what_the_results_say() -> None:
    done = tool(ROOT, "--check")
    assert (done.returncode, done.stdout) == (0, "")


def rewrite(folder: Path, bench: str, **series: list[float]) -> None:
    path = max((folder / "benchmarks/results").glob(f"{bench}_amd-*.json"))
    content = json.loads(path.read_text())
    for name, values in series.items():
        content["results"][name]["raw"] = values
    content["claims"][0]["holds"] = False
    path.write_text(json.dumps(content))


def test_a_changed_result_makes_the_pages_stale_until_they_are_written(copy: Path) -> None:
    rewrite(copy, "cache", **{"fill/hasten_s": [7.71, 7.72, 7.73]})
    stale = tool(copy, "--check")
    assert stale.returncode == 1
    named = {line.split(":")[0] for line in stale.stdout.splitlines()}
    assert named == {"README.md", "docs/benchmarks.md", "docs/results.md", "docs/techniques.md"}
    assert tool(copy).returncode == 0
    assert tool(copy, "--check").returncode == 0
    row = "| filling, s (Hasten: and written to disk) | 7.72 [7.71, 7.73] |"
    assert row in (copy / "docs/benchmarks.md").read_text()
    assert "| 7.72 | 45.5 |" in (copy / "README.md").read_text()
    claim = "filling: MONAI's CacheDataset takes this many times Hasten's seconds | 9.33 | >= 3"
    assert f"| {claim} | **missed** |" in (copy / "docs/results.md").read_text()


def test_what_another_machine_measured_changes_no_figure_but_is_listed(copy: Path) -> None:
    record = json.loads(next((copy / "benchmarks/results").glob("engine_optimizers_amd-*.json")).read_text())
    record |= {"date": "2030-01-01", "hardware": record["hardware"] | {"card": "Some GPU"}}
    record["results"]["optimizers/hasten lamb_ms"]["raw"] = [1.0, 1.0, 1.0]
    (copy / "benchmarks/results/engine_optimizers_some-gpu_2030-01-01.json").write_text(json.dumps(record))
    stale = {line.split(":")[0] for line in tool(copy, "--check").stdout.splitlines()}
    assert stale >= {"docs/results.md"}
    tool(copy)
    assert "| LAMB | 10.1 [9.69" in (copy / "docs/benchmarks.md").read_text()
    results = (copy / "docs/results.md").read_text()
    assert "`engine_optimizers_some-gpu_2030-01-01.json`: Some GPU" in results
    assert "measured again in engine_optimizers_some-gpu" not in results


def test_a_series_that_is_not_there_names_the_file_and_what_is() -> None:
    book = benchmark_tables.Book(benchmark_tables.load(ROOT / "benchmarks/results"))
    with pytest.raises(ValueError, match=r"time_limit_.*json: .*'none/gain'; there are "):
        book.mid("time_limit", "none/gain")
    with pytest.raises(ValueError, match="no result of 'steps' is committed"):
        book.mid("steps", "a")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1672.4, "1672"), (24.31, "24.3"), (4.398, "4.40"), (0.2341, "0.234"), (0.0, "0")],
)
def test_figures(value: float, text: str) -> None:
    assert benchmark_tables.figure(value) == text
