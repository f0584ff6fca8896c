"""Nothing in the step region reads a device value. On a GPU that would stall the step; here the text is checked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.hot_path import violations

SOURCE = Path(__file__).parents[1] / "src" / "hasten"
FILES = sorted(
    [
        *SOURCE.glob("augment/*.py"),
        *SOURCE.glob("sample/*.py"),
        *SOURCE.glob("feed/*.py"),
        *(SOURCE / f"training/{name}.py" for name in ("step", "update", "capture")),
        SOURCE / "runtime" / "precision.py",
        SOURCE / "monai/workflow.py",
        *SOURCE.glob("optim/*.py"),
    ]
)

ALLOWED: set[tuple[str, str]] = {
    # The CPU's own renderer: what it reads lies in host memory, and reading it is how it skips what was not drawn.
    ("augment/host.py", "_applied"),
    ("augment/host.py", "_Reader._group"),
    ("augment/host.py", "_Reader._between"),
    # On a CPU alone, where there is no device to wait for.
    ("optim/lamb.py", "Lamb._update"),
    ("optim/lars.py", "Lars._update"),
    ("optim/novograd.py", "Novograd._update"),
    # Once, before a captured graph is believed.
    ("training/capture.py", "CapturedStep._differs"),
    # Transforms that are not lowered run on the host, whatever the device.
    ("augment/whole_cases.py", "run_per_sample"),
    # Once, when a chain is bound to data.
    ("augment/store.py", "with_sets"),
    ("augment/store.py", "check_fits"),
    ("augment/store.py", "common_size"),
    ("augment/store.py", "_volume"),
    # Only where cases lie on the disk, and the host draws and makes their samples: the tensors are its own.
    ("augment/program.py", "Segment._read_ahead"),
    # Only where transforms run on whole cases, or whole samples are handed over: the host draws and reads its own.
    ("augment/program.py", "HostSource.begin"),
    ("augment/program.py", "_whole"),
}
"""(file below src/hasten, qualified function): work that is done once, outside the step. Say why beside each."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_the_step_region_never_waits_for_the_device(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    result = violations(path.read_text(encoding="utf-8"))
    bad = [f"{name}:{line}: {function}: {what}" for function, line, what in result if (name, function) not in ALLOWED]
    assert not bad, "\n".join(bad)


def test_every_exception_is_still_needed() -> None:
    needed = {
        (path.relative_to(SOURCE).as_posix(), function)
        for path in FILES
        for function, _, _ in violations(path.read_text(encoding="utf-8"))
    }
    assert needed >= ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "return x.item()",
        "return x.cpu()",
        "return x.detach().numpy()",
        "return x.sum().tolist()",
        "return x.nonzero()",
        "return x.nonzero(as_tuple=True)",
        "return torch.nonzero(x)",
        "return nonzero(x)",
        "return torch.argwhere(x)",
        "return torch.masked_select(x, m)",
        "return x.masked_select(m)",
        "return torch.where(x)",
        "return x[x > 0]",
        "return x[:, x == 0]",
        "return x[~m]",
        "return x[(x > 0) & (x < 1)]",
        "return x[torch.isnan(x)]",
        "return x[m.bool()]",
        "return x[self.mask]",
        "x[x > 0] = 0",
        "keep = x > 0; return x[keep]",
        "return [y for y in range(3) if x.item()]",
        "return (lambda: x.item())()",
    ],
)
def test_a_bad_line_is_found(line: str) -> None:
    for source, name in [
        (f"def f(x, m):\n    {line}\n", "f"),
        (f"class A:\n    def f(self, x, m):\n        {line}\n", "A.f"),
        (f"def g():\n    def f(x, m):\n        {line}\n", "g.f"),
    ]:
        ast.parse(source)
        assert [result for result, _, _ in violations(source)] == [name]


@pytest.mark.parametrize(
    "line",
    [
        "return torch.where(x > 0, x, 0)",
        "return x[..., 0, 1:]",
        "return x[i & 7, index]",
        "return x * (x > 0)",
        "return x.masked_fill(x > 0, 0)",
        "y: dict[int, list[str | None]] = {}",
        "return sizes.items()",
        "return x[None]",
        "return torch.gather(x, 0, index)",
    ],
)
def test_a_good_line_passes(line: str) -> None:
    assert violations(f"def f(x: dict[str, int | None]) -> list[int | str]:\n    {line}\n") == []


def test_code_that_runs_at_import_is_left_alone() -> None:
    assert violations("TABLE = torch.arange(3).tolist()\n") == []
