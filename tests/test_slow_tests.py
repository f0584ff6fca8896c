from __future__ import annotations

from pathlib import Path

from tools.slow_tests import lines, times

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.training.test_loop" name="test_a[1]" time="2.5"/>
<testcase classname="tests.training.test_loop" name="test_b" time="4.0"/>
<testcase classname="tests.test_examples" name="test_c" time="1.0"/>
</testsuite></testsuites>"""


def test_the_slowest_come_first_and_files_and_folders_add_up(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(REPORT)
    seconds = times(tmp_path / "tests.xml")
    assert seconds["tests/training/test_loop.py::test_a[1]"] == 2.5
    assert list(lines(seconds)) == [
        "tests:",
        "     4.0 s  tests/training/test_loop.py::test_b",
        "     2.5 s  tests/training/test_loop.py::test_a[1]",
        "     1.0 s  tests/test_examples.py::test_c",
        "files:",
        "     6.5 s  tests/training/test_loop.py",
        "     1.0 s  tests/test_examples.py",
        "folders:",
        "     6.5 s  tests/training",
        "     1.0 s  tests/test_examples.py",
        "8 s in 3 tests",
    ]
