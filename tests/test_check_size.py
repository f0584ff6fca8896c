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
    file.write_text(function("fits", 60) + "\n" * 340)
    assert check(tmp_path)[0] == 0
    file.write_text("\n" + function("outgrown", 61) + "\n" * 339)
    assert check(tmp_path) == (
        1,
        ["src/a.py:1: 401 lines (at most 400); split it by idea", "src/a.py:2: outgrown has 61 lines (at most 60)"],
    )
