"""A trained run on its validation cases, with its own settings of `infer` and with others: what these gain and cost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.cache.case_set import read_cases
from hasten.checkpoint.weights import model_file, read_model
from hasten.config.load import load_run
from hasten.evaluation.cleaning import Chosen, choose_cleanings
from hasten.evaluation.crossval import validation_pairs
from hasten.evaluation.evaluate import Evaluation, evaluate_pairs
from hasten.evaluation.examples import Example, examples_of
from hasten.evaluation.pairs import Pairs
from hasten.observe.folds import refuse_cross_validation
from hasten.observe.rundir import RUN_YAML
from hasten.prediction.ensemble import Member, with_infer
from hasten.prediction.model import load_members
from hasten.prediction.outputs import make_folder
from hasten.prediction.postprocess import write_cleanings
from hasten.prediction.predict import predict_cases

Tick = Callable[[int, int, Path], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsTrial:
    """The validation cases with one choice of settings."""

    overrides: tuple[str, ...]
    """Changed settings of `infer`; empty for the run's own."""
    settings: Mapping[str, Any]
    """All settings, as the section `infer` has them."""
    evaluation: Evaluation
    examples: tuple[Example, ...]
    passes: int
    """Number of windows, mirrored ones included, that went through the network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """A run with its own settings, and with others."""

    run: Path
    classes: list[str]
    """Foreground classes in the order of the class indices."""
    own: SettingsTrial
    other: SettingsTrial | None
    chosen: Chosen | None
    """Post-processing of the label maps of `own`."""

    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The settings that were tried beside the run's own: their names to both values."""
        assert self.other is not None
        names = dict.fromkeys(text.partition("=")[0].strip().partition(".")[2] for text in self.other.overrides)
        return {name: (self.own.settings.get(name), self.other.settings[name]) for name in names}

    def better(self) -> tuple[int, int]:
        """Cases whose mean Dice is higher with the other settings, and cases in all."""
        assert self.other is not None
        before, after = self.own.evaluation.case_means(), self.other.evaluation.case_means()
        return sum(after[case] > dice for case, dice in before.items()), len(before)


def evaluate_run(
    run: str | Path,
    *,
    overrides: Sequence[str] = (),
    postprocessing: bool = False,
    surfaces: bool = True,
    device: str | None = None,
    out: Path | None = None,
    tick: Tick | None = None,
) -> Trials:
    """Scores of a run's validation cases on the images' own voxels, by its best weights.

    overrides: settings of `infer` that are tried beside the run's own, such as "infer.flip_axes=[0,1,2]".
    postprocessing: choose what is done to label maps by these cases, as a cross-validation does, and write it into the
    run's postprocessing.yaml, which `predict` applies. device: None takes that of the run. out: folder for
    the label maps meanwhile, where that of the run can't be written. tick: as for `predict`. Raises ValueError.
    """
    run = Path(run)
    refuse_cross_validation(run)
    if not (run / RUN_YAML).is_file():
        raise ValueError(f"{run}: holds no run ({RUN_YAML} is missing); name the folder of a training run, or LABELS")
    members = [Member(model_file(run), read_model(run))]
    changed = with_infer(members, overrides)
    pairs = validation_pairs(run)
    if not pairs.pairs:
        raise ValueError(f"{run}: has no labelled validation cases; score other label maps with LABELS")
    make_folder(out or run)
    with tempfile.TemporaryDirectory(dir=out or run, prefix=".evaluate") as scratch:
        folder = Path(scratch)
        baseline = _trial(run, members, (), pairs, folder / "own", surfaces=surfaces, device=device, tick=tick)
        chosen = choose_cleanings(_in(pairs, folder / "own"), baseline.evaluation) if postprocessing else None
        other = None
        if overrides:
            other = _trial(
                run, changed, tuple(overrides), pairs, folder / "other", surfaces=surfaces, device=device, tick=tick
            )
    if chosen is not None:
        write_cleanings(run, chosen.cleanings)
    return Trials(run=run, classes=pairs.class_names, own=baseline, other=other, chosen=chosen)


def _trial(
    run: Path, members: Sequence[Member], overrides: tuple[str, ...], pairs: Pairs, out: Path, *, surfaces: bool,
    device: str | None, tick: Tick | None,
) -> SettingsTrial:  # fmt: skip
    config = load_run(run / RUN_YAML)
    case_set, _, validation = read_cases(config)
    labelled = {pair.case for pair in pairs.pairs}
    model = load_members(members, device=device or config.train.device)
    counts: list[int] = []
    model.network.register_forward_pre_hook(lambda _, inputs: counts.append(len(inputs[0])))
    predict_cases(members, [case for case in validation if case.id in labelled], out, model=model, tick=tick)
    predicted = _in(pairs, out)
    evaluation = evaluate_pairs(predicted, predictions=run, labels=case_set.source, surfaces=surfaces)
    return SettingsTrial(
        overrides=overrides,
        settings=members[0].content["config"]["infer"],
        evaluation=evaluation,
        examples=examples_of(evaluation, predicted),
        passes=sum(counts),
    )


def _in(pairs: Pairs, folder: Path) -> Pairs:
    """`pairs` with the predictions taken from `folder`."""
    moved = (replace(each, prediction=folder / each.prediction.name) for each in pairs.pairs)
    return replace(pairs, pairs=tuple(moved))
