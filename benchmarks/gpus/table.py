"""What the files of all parts say, in a few lines that fit the end of a log."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from benchmarks.gpus.plan import PARTS
from benchmarks.gpus.sheet import sheet_of

_DETAIL = ("_Mvoxel/s", "_peak_mib", ", beside ", "conv3d/", ", first step")
"""Parts of names of series that are for the files only."""


def print_table(out: Path, device: str, *, quick: bool) -> None:
    for part in PARTS:
        result = sheet_of(part.name, out, device, quick=quick)
        if result is None:
            print(f"\n{part.name}: not measured")
            continue
        path, record = result
        print(f"\n{part.name} ({record['status']}): {path.name}")
        for name, row in record["results"].items():
            if row["n"] and not _is_detail(name, record["results"]):
                print(f"  {name} {row['median']:.4g} [{row['min']:.4g}, {row['max']:.4g}] n={row['n']}")
        for name, why in record["left_out"].items():
            print(f"  left out: {name}: {why}")
        for claim in record["claims"] or record.get("rehearsed_claims", []):
            value = "not run" if claim["value"] is None else f"{claim['value']:.4g}"
            print(f"  {'holds' if claim['holds'] else 'DOES NOT HOLD'}: {claim['name']}: {value} ({claim['goal']})")


def _is_detail(name: str, others: Container[str]) -> bool:
    """For the file only: a twin of another series, or one of very many."""
    paced = f"{name.removesuffix('_ms')}_patches/s"
    return any(part in name for part in _DETAIL) or (name.endswith("_ms") and paced in others)
