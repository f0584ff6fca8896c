"""The notebook of the quick start runs from top to bottom; it is kept without outputs."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.docs.reading import DOCS

NOTEBOOK = DOCS / "start.ipynb"


def test_it_is_kept_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []
    assert len(code) > 3


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    # A busy machine sends the output of a cell later than the 4 s that are usually waited for.
    client = nbclient.NotebookClient(
        notebook, timeout=240, iopub_timeout=120, kernel_name="python3", resources=resources
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output["data"] for output in outputs if "data" in output]
    tables = "".join(data.get("text/html", "") for data in shown)
    assert "<td>sample.patch</td>" in tables  # of the plan
    assert "40 steps in" in tables  # of the summary
    assert "srcdoc=" in tables  # the report
    assert any("step 40/40" in data["text/plain"] for data in shown)  # the progress
    assert (tmp_path / "report.html").is_file()
    assert len(list((tmp_path / "masks").glob("*.nii.gz"))) == 8
