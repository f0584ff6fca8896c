"""The slowest tests of the last `make test`, and the seconds by folder: `python tools/slow_tests.py [REPORT.xml]`.

A fixture that several tests share counts with the first of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

REPORT = Path(__file__).resolve().parents[1] / "build" / "tests.xml"
"""Where `make test` has pytest write it."""
MOST = 30


def times(report: Path) -> dict[str, float]:
    """Seconds of every test, by tests/FOLDER/FILE.py::NAME, from a report of `pytest --junitxml`."""
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(case.get("time", 0))
        for case in ElementTree.parse(report).iter("testcase")
    }


def lines(seconds: dict[str, float]) -> Iterator[str]:
    """The slowest tests, then the slowest files, then all folders."""
    tests = Counter(seconds)
    files, folders = Counter[str](), Counter[str]()
    for name, value in seconds.items():
        file = name.partition("::")[0]
        files[file] += value
        folders["/".join(file.split("/")[:2])] += value
    for title, group, most in (("tests", tests, MOST), ("files", files, MOST), ("folders", folders, None)):
        yield f"{title}:"
        yield from (f"{value:8.1f} s  {name}" for name, value in group.most_common(most))
    yield f"{sum(seconds.values()):.0f} s in {len(seconds)} tests"


def main() -> None:
    report = Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT
    if not report.is_file():
        raise SystemExit(f"{report}: not there; run `make test` first, or give a report of `pytest --junitxml`")
    print("\n".join(lines(times(report))))


if __name__ == "__main__":
    main()
