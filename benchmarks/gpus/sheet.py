"""What a part has found so far, in a file that is whole at every moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Claim, file_name, plain, record_of, spread
from hasten.observe.rundir import write_json

if TYPE_CHECKING:
    import torch

FINISHED = "finished"
RUNNING = "running"
"""Left in a file whose process was killed."""
REHEARSAL = "rehearsal-on-cpu"
"""In the name of every file that did not come from a GPU."""


@dataclass(kw_only=True)
class Sheet:
    """The results of one part; every figure is on the disk as soon as it is kept."""

    path: Path
    device: torch.device
    quick: bool
    ends: float
    """By `time.monotonic`: what would go on longer is left out."""
    base: dict[str, Any]
    """What was known before the first figure: machine, versions, date."""
    results: dict[str, list[float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    status: str = RUNNING

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    def keep(self, series: Mapping[str, Sequence[float]]) -> None:
        """Raw numbers by the name of a series, its unit at the end of it."""
        self.results |= {name: [float(value) for value in values] for name, values in series.items()}
        self.write()

    def tell(self, name: str, value: Any) -> None:
        """Whatever else the reader needs."""
        self.settings[name] = value
        self.write()

    def claim(self, *claims: Claim) -> None:
        self.claims += claims
        self.write()

    def skip(self, what: str, why: str) -> None:
        """Nothing was measured of this."""
        self.left_out[what] = why
        self.write()

    def attempt(self, what: str, needs: float, measure: Callable[[], None]) -> None:
        """Run one measurement if so many seconds are left; one that fails is told, and the next one goes on.

        A fault of the GPU's ends all that this process can do, so that it is raised.
        """
        import torch

        if self.left() < needs:
            self.skip(what, f"no time: {self.left():.0f} s were left, and it takes about {needs:.0f}")
            return
        try:
            measure()
        except torch.OutOfMemoryError:
            self.skip(what, "out of memory")
        except torch.AcceleratorError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            self.skip(what, f"failed: {type(error).__name__}: {lines[0] if lines else ''}")
        if self.cuda:
            torch.cuda.empty_cache()

    def write(self) -> None:
        claims = [asdict(claim) for claim in self.claims]
        results = {
            **self.base,
            "status": self.status,
            "device": self.device.type,
            "settings": plain(self.settings),
            "left_out": self.left_out,
            "results": {name: spread(values) for name, values in self.results.items()},
            # The goals are a GPU's: elsewhere nothing is claimed.
            "claims": claims if self.cuda else [],
        }
        if not self.cuda:
            results["rehearsed_claims"] = claims
        write_json(self.path, results)


def new_sheet(part: str, out: Path, device: torch.device, *, quick: bool, seconds: float) -> Sheet:
    """A sheet whose file is in `out` from now on. seconds: what the part may take."""
    base = record_of(bench_name(part, device.type), [], {}, quick)
    path = out / file_name(base)
    before = _read(path)
    if before is not None and before.get("status") != FINISHED:
        # An attempt that was cut off may have come further than this one will.
        base["earlier"] = {key: before.get(key) for key in ("date", "status", "settings", "results", "left_out")}
    sheet = Sheet(path=path, device=device, quick=quick, ends=time.monotonic() + seconds, base=base)
    out.mkdir(parents=True, exist_ok=True)
    sheet.write()
    return sheet


def bench_name(part: str, device: str) -> str:
    return f"gpu_{part}" if device == "cuda" else f"gpu_{part}_{REHEARSAL}"


def sheet_of(part: str, out: Path, device: str, *, quick: bool) -> tuple[Path, dict[str, Any]] | None:
    """Path and content of the newest file of a part in `out`; None where there is none that can be read."""
    for path in sorted(out.glob(f"{bench_name(part, device)}_*.json"), key=lambda path: path.stat().st_mtime)[::-1]:
        record = _read(path)
        if record is not None and (record.get("bench"), record.get("quick")) == (bench_name(part, device), quick):
            return path, record
    return None


def _read(path: Path) -> dict[str, Any] | None:
    """None of a file that is not there or holds no record."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
