"""`tune`: the settings of speed that a run leaves to be measured, measured once and written as a run's YAML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hasten
from hasten.config.decision import Accelerators
from hasten.config.load import dump_run, with_absolute_paths
from hasten.config.schema import RunConfig
from hasten.config.settled import with_settings
from hasten.doctor.training import current_device, machine, make_folder, measured_settings, pick_device, plan_run
from hasten.observe.clock import Clock
from hasten.observe.cores import usable_cores
from hasten.observe.rundir import empty_folder, write_json, write_text, writing_to
from hasten.report.model import Table

TUNED_YAML, TUNE_JSON = "tuned.yaml", "tune.json"
FIELDS = {
    "precision": "precision",
    "channels_last": "channels-last",
    "fused_kernels": "fused kernels",
    "compile": "compiled network",
}
"""The fields of `train` that are measured, and the accelerator whose measurement decides each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The run with the settings that measured fastest."""

    config: RunConfig
    """The run as in tuned.yaml."""
    out: Path
    changes: dict[str, tuple[Any, Any]]
    """Fields of the run's YAML that are not as they were, before and after."""
    accelerators: Accelerators
    """What was measured, with its figures, by name."""
    busy: bool
    """Whether other programs took too much of the processor, so that nothing is concluded."""
    about: dict[str, Any]
    """The machine that it holds for."""

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.busy:
            return "No conclusion: other programs used this machine meanwhile, and the run stays as it was given."
        if not self.changes:
            return "The run stays as it was given: its settings are those that measured fastest."
        are = "setting is" if len(self.changes) == 1 else "settings are"
        return f"{len(self.changes)} {are} set to what measured fastest on this machine."

    def lines(self) -> list[str]:
        """Lines for a terminal: the verdict and what changed."""
        changes = (f"  {name}: {_text(old)} -> {_text(new)}" for name, (old, new) in self.changes.items())
        return [self.verdict, *changes]

    def table(self) -> Table:
        """Each accelerator, whether it is on, who settled it, and the figures."""
        rows = tuple((name, _text(one.on), one.set_by, one.reason) for name, one in self.accelerators.items())
        return Table(("accelerator", "on", "by", "why"), rows)


def tune(config: RunConfig, out: Path, *, echo: Callable[[str], None] | None = None) -> Tuned:
    """Measure the settings of speed of the run of `config`, set or not, and write tuned.yaml and tune.json to `out`.

    They are compared as at the start of a training, by loss and gradient norm too, however short the run is. What could
    not be measured stays as it was given. echo: called with a line before each measurement. Raises ValueError for bad
    input, before anything is written.
    """
    created = make_folder(empty_folder(Path(out)))
    try:
        with current_device(pick_device(config.train.device)):
            tuned = _tuned(with_absolute_paths(config), Path(out), Clock(tell=echo or (lambda text: None)))
        _write(tuned)
    except BaseException:
        if created and not any(Path(out).iterdir()):
            Path(out).rmdir()
        raise
    return tuned


def _tuned(config: RunConfig, out: Path, clock: Clock) -> Tuned:
    planned = plan_run(with_settings(config, "train", **dict.fromkeys(FIELDS)))
    measured, accelerators, busy = measured_settings(planned, clock)
    values = {
        field: getattr(measured.config.train, field)
        for field, name in FIELDS.items()
        if not busy and name in accelerators and accelerators[name].set_by == "measured"
    }
    name, torch_version, threads = machine(planned.device)
    return Tuned(
        config=with_settings(config, "train", **values),
        out=out,
        changes={
            f"train.{field}": (before, value)
            for field, value in values.items()
            if value != (before := getattr(config.train, field))
        },
        accelerators=accelerators,
        busy=busy,
        about={
            "machine": name,
            "device": str(planned.device),
            "cores": usable_cores(),
            "threads": threads,
            "torch": torch_version,
            "hasten": hasten.__version__,
            "network": planned.config.network.name,
            "patch": planned.config.sample.patch,
        },
    )


def _text(value: object) -> str:
    """A value as in YAML; `open` for None."""
    return "open" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _write(tuned: Tuned) -> None:
    content = {name: getattr(tuned, name) for name in ("verdict", "busy", "about", "accelerators")}
    content["changes"] = [{"field": name, "before": old, "after": new} for name, (old, new) in tuned.changes.items()]
    with writing_to(tuned.out):
        write_text(tuned.out / TUNED_YAML, dump_run(tuned.config))
        write_json(tuned.out / TUNE_JSON, content)
