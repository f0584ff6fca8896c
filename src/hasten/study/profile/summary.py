"""`summarise`: a profile as one JSON-able dict, the classic "summary" report and Hasten's own tables behind it."""

from __future__ import annotations

from typing import Any

from hasten.study.profile.recording import Recording, read
from hasten.study.profile.tables import CPU, GPU, Tables, tables_of

_TOPPED = ("transforms", "modules", "ops", "kernels")
TOP = 20
"""Rows of each table in the summary; the tables' own reports have all."""


def summarise(profiler: Any, *, top: int = TOP) -> dict[str, Any]:
    """The summary of a finished `torch.profiler.profile`, of any loop; counts and whole ns throughout.

    "All Kernels" has the shape of DLProf's summary report: by kind ("All kernels", "Kernels using Tensor Cores",
    "Memory kernels", "All other kernels") "# Kernels" (different ones), "CPU Time (ns)" and "GPU Time (ns)", and
    besides "# Calls". With a GPU a kernel is what ran there, copies and fills included, and its CPU time is that of the
    operation that launched it; without one, it is an operation that calls no other, or a region that a compiler made,
    and GPU time is 0. "Phases" splits the wall time of the training's thread; "Transforms" has the ranges inside data
    loading and on threads beside the training; "Modules" the ranges of modules, "Ops" operations with their own time,
    "Kernels" kernels: the `top` largest of each. Raises ValueError for a profile that holds nothing.
    """
    recording = read(profiler)
    return summary_of(recording, tables_of(recording), top=top)


def summary_of(recording: Recording, tables: Tables, *, top: int = TOP) -> dict[str, Any]:
    return {
        "All Kernels": tables.kinds,
        "Phases": tables.phases,
        **{name.title(): dict(list(getattr(tables, name).items())[:top]) for name in _TOPPED},
        "Wall": {CPU: recording.wall, GPU: sum(recording.device.values())},
    }
