"""What a profile is taken of: a run's YAML, a data set, or a run's folder, which is only read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.observe.rundir import CHECKPOINTS, ENV_JSON, METRICS_JSONL, PLAN_JSON, RUN_YAML, SUMMARY_JSON

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig


def run_folder_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig | None:
    """The settings of the run in a folder; None for a folder (or file) that holds no run.

    Raises ValueError for a run's folder without its settings.
    """
    if not path.is_dir():
        return None
    if not (path / RUN_YAML).is_file():
        left = [
            name for name in (METRICS_JSONL, PLAN_JSON, SUMMARY_JSON, ENV_JSON, CHECKPOINTS) if (path / name).exists()
        ]
        if len(left) < 2:  # a data set may well have a summary.json
            return None
        raise ValueError(
            f"{path}: holds an incomplete run ({', '.join(left)}, but no {RUN_YAML}); name its data set or a run's YAML"
        )
    from hasten.config.load import load_run

    return load_run(path / RUN_YAML, overrides)


def empty_folder(out: Path) -> Path:
    """`out`, if a profile can be written there. Raises ValueError for a file, or a folder with anything in it."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a new or empty folder")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"--out {out}: is not empty; name a new or empty folder, so that nothing is overwritten")
    return out
