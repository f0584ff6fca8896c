from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.observe import cores


@pytest.mark.parametrize(("quota", "usable"), [(None, 3), (8.0, 3), (2.0, 2), (1.5, 2), (0.3, 1)])
def test_usable_cores_follow_the_affinity_and_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.usable_cores() == usable


def seen_after(statements: str, **variables: str) -> dict[str, str]:
    """`cores.SPIN` in a new process after the statements: as it sees them, and as a script of the doctor would."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "KMP_", "HASTEN_SPIN"))}
    code = f"""{statements}
import os
from hasten.observe.cores import SPIN, environment_of_user
print({{name: (os.environ.get(name), environment_of_user().get(name)) for name in SPIN}})"""
    run = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **variables}, capture_output=True, text=True, check=True
    )
    return eval(run.stdout)  # type: ignore[no-any-return]


def test_importing_hasten_bounds_the_spin_of_openmp_but_not_of_scripts_that_it_starts() -> None:
    assert seen_after("import hasten") == {name: (value, None) for name, value in cores.SPIN.items()}


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "PASSIVE")])
def test_what_the_user_set_stays(name: str, value: str) -> None:
    nothing = dict.fromkeys(cores.SPIN, (None, None))
    expected = {**nothing, name: (value, value)} if name in nothing else nothing
    assert seen_after("import hasten", **{name: value}) == expected


def test_it_is_too_late_once_torch_is_loaded() -> None:
    code = "import sys; sys.modules['torch'] = sys; import hasten"
    assert seen_after(code) == dict.fromkeys(cores.SPIN, (None, None))


def test_the_quota_of_either_kind_of_control_group(tmp_path: Path):
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    (root / "job").mkdir(parents=True)
    own.write_text("0::/job/inner\n")
    assert cores.cpu_quota(own, root) is None
    (root / "cpu.max").write_text("400000 100000\n")
    (root / "job/cpu.max").write_text("max 100000\n")
    assert cores.cpu_quota(own, root) == 4.0
    own.write_text("3:cpu,cpuacct:/job\n")
    (root / "cpu/job").mkdir(parents=True)
    (root / "cpu/job/cpu.cfs_quota_us").write_text("150000\n")
    (root / "cpu/job/cpu.cfs_period_us").write_text("100000\n")
    assert cores.cpu_quota(own, root) == 1.5
    assert cores.cpu_quota(tmp_path / "none", root) is None
