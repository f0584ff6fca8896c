from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "check_size.py"


def check(root: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, str(TOOL), str(root)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def function(name: str, lines: int) -> str:
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


def test_limits_are_met_and_passed_by_one(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "a.py"
    file.write_text(function("fits", 80) + "\n" * 520)
    assert check(tmp_path)[0] == 0
    file.write_text("\n" + function("outgrown", 81) + "\n" * 519)
    assert check(tmp_path) == (
        1,
        ["src/a.py:1: 601 lines (at most 600); split it by idea", "src/a.py:2: outgrown has 81 lines (at most 80)"],
    )


def test_a_package_has_a_budget_and_keeps_it(tmp_path: Path) -> None:
    for name, lines in (("small", 5), ("large", 6), ("unlisted", 1)):
        (tmp_path / "src" / "hasten" / name).mkdir(parents=True)
        (tmp_path / "src" / "hasten" / name / "__init__.py").write_text("\n" * lines)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.hasten.lines]\n"src/hasten/small" = 5\n"src/hasten/large" = 5\n"src" = 12\n'
    )
    code, lines = check(tmp_path)
    assert (code, [line.split(":")[0] for line in lines]) == (1, ["src/hasten/large", "src/hasten/unlisted"])
    assert lines[0].endswith("remove 1")
