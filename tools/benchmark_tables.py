"""Write what the documentation takes from committed results and from the code: `tools/benchmark_tables.py [--check]`.

Pages with figures, verbs or settings are templates, docs/**/NAME.md.j2, which become NAME.md beside them; README.md has
one table between markers, whose template is docs/readme.j2; docs/ladder.svg is drawn. `--check` writes nothing and
fails, naming them, where a file is not what would be written.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import reference_pages
from benchmark_chart import LADDERS, chart

ROOT = Path(__file__).resolve().parents[1]
MACHINE = "amd-epyc"
"""Whose figures the pages tell; those of others stand on the page of all claims."""
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One committed file."""

    file: str
    bench: str
    date: str
    content: dict[str, Any]

    @property
    def machine(self) -> str:
        """As the file's name has it."""
        return self.file.removeprefix(f"{self.bench}_").rpartition("_")[0]


def load(folder: Path) -> list[Result]:
    """Every full result, the oldest first. ValueError for a file that is not one."""
    results = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or "claims" not in content:
            raise ValueError(f"{path.name}: not a result of benchmarks/harness.py, it has no 'claims'")
        if content.get("quick"):
            raise ValueError(f"{path.name}: a quick run; only full ones belong into {folder.name}/")
        bench = content.get("bench", path.name.split("_")[0])
        date = str(content.get("date", path.stem.split("_")[-1]))
        results.append(Result(file=path.name, bench=bench, date=date, content=content))
    return sorted(results, key=lambda each: (each.date[:10], each.date, each.bench))


def figure(value: float) -> str:
    """Three digits, without an exponent."""
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


class Book:
    """What a template asks: series, ratios, claims of the newest file of a benchmark, of `MACHINE` where it has one."""

    def __init__(self, results: list[Result]) -> None:
        self.results = results
        here = [each for each in results if each.machine == MACHINE]
        self.newest = {each.bench: each for each in [*results, *here]}

    def on(self, machine: str) -> Book:
        """The results of another machine alone."""
        return Book([each for each in self.results if each.machine == machine])

    def content(self, bench: str) -> dict[str, Any]:
        if bench not in self.newest:
            raise ValueError(f"no result of '{bench}' is committed; there are {', '.join(sorted(self.newest))}")
        return self.newest[bench].content

    def has(self, bench: str) -> bool:
        return bench in self.newest

    def file(self, bench: str) -> str:
        self.content(bench)
        return self.newest[bench].file

    def names(self, bench: str) -> list[str]:
        return list(self.content(bench)["results"])

    def raw(self, bench: str, series: str) -> list[float]:
        results = self.content(bench)["results"]
        if series not in results:
            raise ValueError(f"{self.file(bench)}: no series '{series}'; there are {', '.join(results)}")
        return [float(value) for value in results[series]["raw"]]

    def n(self, bench: str, series: str) -> int:
        return len(self.raw(bench, series))

    def value(self, bench: str, series: str, scale: float = 1) -> float:
        return statistics.median(self.raw(bench, series)) * scale

    def mid(self, bench: str, series: str, scale: float = 1) -> str:
        """The median."""
        return figure(self.value(bench, series, scale))

    def range(self, bench: str, series: str, scale: float = 1) -> str:
        """The median with the smallest and the largest value."""
        values = [value * scale for value in self.raw(bench, series)]
        middle = figure(statistics.median(values))
        return middle if len(values) == 1 else f"{middle} [{figure(min(values))}, {figure(max(values))}]"

    def dice(self, bench: str, series: str, digits: int = 3) -> str:
        """The same with a fixed number of decimals."""
        values = self.raw(bench, series)
        middle = f"{statistics.median(values):.{digits}f}"
        return middle if len(values) == 1 else f"{middle} [{min(values):.{digits}f}, {max(values):.{digits}f}]"

    def share(self, bench: str, series: str, spread: bool = True) -> str:
        """A share as percent."""
        values = [value * 100 for value in self.raw(bench, series)]
        middle = f"{statistics.median(values):.1f} %"
        return f"{middle} [{min(values):.1f}, {max(values):.1f}]" if spread and len(values) > 1 else middle

    def ratio(self, bench: str, over: str, under: str) -> str:
        return figure(self.value(bench, over) / self.value(bench, under))

    def paired(self, bench: str, over: str, under: str) -> str:
        """Median and range of the ratios round by round, of arms that took turns."""
        pairs = zip(self.raw(bench, over), self.raw(bench, under), strict=True)
        ratios = [one / other for one, other in pairs]
        return f"{figure(statistics.median(ratios))} [{figure(min(ratios))}, {figure(max(ratios))}]"

    def times(self, bench: str, arm: str, level: str) -> tuple[list[float], list[float]]:
        """Seconds to a Dice of the runs that came there, and seconds that the others were let run."""
        there = self.content(bench)["results"]
        reached, stopped = (f"{arm}/to_{level}{end}" for end in ("_s", "_at_least_s"))
        if reached not in there and stopped not in there:
            raise ValueError(f"{self.file(bench)}: no series '{reached}'; there are {', '.join(there)}")
        results = [self.raw(bench, series) if series in there else [] for series in (reached, stopped)]
        return results[0], results[1]

    def to(self, bench: str, arm: str, level: str, spread: bool = True) -> str:
        """Median seconds to a Dice; "more than" where runs that were stopped make it a lower bound."""
        reached, stopped = self.times(bench, arm, level)
        low = statistics.median([*reached, *stopped])
        if low != statistics.median([*reached, *[math.inf] * len(stopped)]):
            return f"more than {figure(low)}"
        values = [*reached, *stopped]
        brackets = f" [{figure(min(values))}, {figure(max(values))}]" if spread and len(values) > 1 else ""
        return figure(low) + brackets

    def claim(self, bench: str, begins: str) -> dict[str, Any]:
        fitting = [one for one in self.content(bench)["claims"] if one["name"].startswith(begins)]
        if len(fitting) != 1:
            raise ValueError(f"{self.file(bench)}: {len(fitting)} claims begin with '{begins}'; one should")
        return dict(fitting[0])

    def guide(self, name: str) -> str:
        """What `python -m benchmarks.guide` found about one claim: its verdict and figure."""
        result = self._guide()
        if name not in result:
            raise ValueError(f"{self.file('guide')}: no claim '{name}'; there are {', '.join(result)}")
        claim = result[name]
        output = f": {claim['measured']}" if claim["measured"] else f" ({claim['why']})"
        return f"{claim['verdict']}{output}"

    def _guide(self) -> dict[str, dict[str, Any]]:
        return {claim["name"]: claim for claim in self.content("guide")["claims"]}

    def guided(self, verdict: str) -> str:
        """The names of the guide's claims with this verdict, and the figure where there is one."""
        results = [(one["name"], one["measured"].split(",")[0].split(" (")[0]) for one in self._guide().values()
                if one["verdict"] == verdict]  # fmt: skip
        return ", ".join(f"{name} {measured}".strip() for name, measured in results)

    def claims(self) -> Iterator[tuple[Result, list[dict[str, Any]]]]:
        """Every claim with a goal, by file, the newest first; `again` names the newer file that put it once more."""
        for at in range(len(self.results) - 1, -1, -1):
            result = self.results[at]
            put = [claim for claim in result.content["claims"] if "goal" in claim]
            rows = [{**claim, "again": self._later(at, claim["name"])} for claim in put]
            if rows:
                yield result, rows

    def _later(self, at: int, name: str) -> str:
        def kind(result: Result) -> tuple[str, str]:
            return result.bench.split("_")[0], result.machine

        later = [each for each in self.results[at + 1 :] if kind(each) == kind(self.results[at])]
        return next((each.file for each in later if any(c["name"] == name for c in each.content["claims"])), "")

    def missed(self) -> list[tuple[Result, dict[str, Any]]]:
        """Claims that did not hold and were not measured again since."""
        standing = [(result, row) for result, rows in self.claims() for row in rows if not row["again"]]
        return [(result, row) for result, row in standing if not row["holds"]]

    def counted(self) -> tuple[int, int]:
        """How many claims stand, and how many of these hold."""
        standing = [row for _, rows in self.claims() for row in rows if not row["again"]]
        return len(standing), sum(bool(row["holds"]) for row in standing)


def _percent(value: float, digits: int = 1) -> str:
    return f"{value * 100:.{digits}f} %"


def environment(book: Book, root: Path) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / "docs"), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.globals |= {"b": book, "ladders": LADDERS, "zip": zip, "reference": reference_pages}
    made.filters |= {"figure": figure, "percent": _percent}
    return made


def written(root: Path, results: Path) -> dict[Path, str]:
    """Every file that is made, with its text."""
    book = Book(load(results))
    pages = environment(book, root)
    made = {}
    for template in sorted((root / "docs").rglob("*.md.j2")):
        name = template.relative_to(root / "docs").as_posix()
        note = f"<!-- Made from {template.name} by tools/benchmark_tables.py: edit that one. -->\n\n"
        made[template.with_suffix("")] = note + pages.get_template(name).render()
    readme = root / "README.md"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md: the markers {BEGIN} and {END} are missing")
    made[readme] = f"{before}{BEGIN}\n{pages.get_template('readme.j2').render().strip()}\n{END}{after}"
    made[root / "docs" / "ladder.svg"] = chart(book)
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository, for tests")
    parser.add_argument("--results", type=Path, help="folder of the results; default benchmarks/results")
    given = parser.parse_args(argv)
    made = written(given.root, given.results or given.root / "benchmarks" / "results")
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(given.root)}: {'is stale' if given.check else 'written'}")
        if not given.check:
            path.write_text(made[path], encoding="utf-8")
    if stale and given.check:
        print("run: python tools/benchmark_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
