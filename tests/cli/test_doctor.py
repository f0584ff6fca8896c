"""`hasten doctor`: which of its three modes is meant, and what each is given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hasten.cli.doctor import DoctorCommand, doctor
from hasten.cli.main import _Guarded
from hasten.config.load import dump_run
from hasten.doctor.environment import examine as machine
from hasten.doctor.run import doctor as run
from hasten.doctor.script import doctor as script
from hasten.observe.rundir import RUN_YAML
from hasten.phantoms.organs import write_phantoms
from tests.training.runs import config_of


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer(cls=_Guarded, pretty_exceptions_enable=False)
    made.command(cls=DoctorCommand)(doctor)
    made.callback()(lambda: None)
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What the verb asked for; each mode has tests of its own."""
    made: list[tuple[str, Any]] = []

    def diagnose_script(command: list[str], **options: Any) -> Any:
        made.append(("script", (command, options)))
        return SimpleNamespace(diagnosis=None, exit_code=7)

    def examine(**options: Any) -> Any:
        made.append(("machine", options))
        return SimpleNamespace(level="warn", checks=(), marker=1)

    def diagnose_run(config: Any, **options: Any) -> Any:
        made.append(("run", (config, options)))
        sentence = "The training is compute-bound: 90% of its time is the step itself."
        return SimpleNamespace(diagnosis=SimpleNamespace(sentence=sentence))

    monkeypatch.setattr(script, "diagnose_script", diagnose_script)
    monkeypatch.setattr(script, "content_of", lambda report: {})
    monkeypatch.setattr(script, "lines", lambda report: ["the verdict"])
    monkeypatch.setattr(machine, "examine", examine)
    monkeypatch.setattr(run, "diagnose_run", diagnose_run)
    return made


def invoke(app: typer.Typer, *arguments: object) -> Any:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ([], ["python", "train.py"]),
        (["--steps", "40"], ["python", "train.py", "--lr", "1", "--steps", "5", "-q"]),
        (["-q"], ["python", "-c", "print(1)", "--", "--more"]),
        ([], ["./run.sh"]),
        ([], ["data.yaml", "a.b=1"]),
    ],
)
def test_everything_after_two_dashes_is_the_script(app, calls, before, command):
    completed = invoke(app, *before, "--", *command)
    assert completed.exit_code == 7
    ((mode, (given, options)),) = calls
    assert (mode, given) == ("script", command)
    assert options["steps"] == (40 if "--steps" in before else 20)
    assert ("the verdict" in completed.stdout) is ("-q" not in before)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--"], "name a command"),
        (["set", "--", "python", "a.py"], "SOURCE (for a run): not for a script after --, which"),
        (["--for", "tpu", "--", "python", "a.py"], "only choice is cuda"),
        (["--for", "cuda"], "--for (for a script after --): not for the machine"),
        (["set", "--for", "cuda"], "--for (for a script after --): not for a run"),
        (
            ["--steps", "9", "--seconds", "9"],
            "--seconds (for a script after -- and a run): not for the machine",
        ),
        (["-q", "--json"], "name one"),
        (
            ["set", "a.b=1", "--compare", "a", "b", "--out", "c", "--steps", "20", "--seconds", "60", "--for", "cuda"],
            "SOURCE (for a run), a.b=value (for a run), --steps (for a script after -- and a run), --seconds",
        ),
        (["--compare", "a", "b", "--", "python", "a.py"], "-- COMMAND: not for --compare"),
        (["--out", __file__, "--", "python", "a.py"], "is a file"),
        (["train.py"], "hasten doctor -- python train.py"),
        (["python", "train.py"], "hasten doctor -- python train.py"),
        (["no-such-set"], "no such file or folder"),
        (["a.b=1"], "must come before the overrides"),
        (["--out", __file__], "is a file"),
    ],
)
def test_mistakes_are_one_line(app, calls, arguments, word):
    completed = invoke(app, *arguments)
    assert completed.exit_code == 2
    assert word in completed.output
    assert len(completed.output.strip().splitlines()) == 1
    assert calls == []


# A run


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("doctor") / "set", num_cases=4, shape=(16, 24, 24))


def test_a_yaml_a_runs_folder_and_a_data_set_are_a_run(app, calls, phantoms, tmp_path: Path):
    (tmp_path / RUN_YAML).write_text(dump_run(config_of(phantoms, tmp_path / "cache")))
    for source in (tmp_path / RUN_YAML, tmp_path, phantoms):
        completed = invoke(app, source, "train.steps=33", "-q", "--steps", 5, "--seconds", 3)
        assert completed.exit_code == 0, completed.output
        assert completed.stdout.startswith("The training is compute-bound")
        mode, (config, options) = calls.pop()
        assert mode == "run"
        assert (config.data.source, config.train.steps) == (str(phantoms), 33)
        assert (options["steps"], options["seconds"]) == (5, 3.0)


# Processes of their own


def test_a_runs_folder_is_not_written_into(app, calls, phantoms, tmp_path: Path):
    (tmp_path / RUN_YAML).write_text(dump_run(config_of(phantoms, tmp_path / "cache")))
    completed = invoke(app, tmp_path, "--out", tmp_path)
    assert completed.exit_code == 2
    assert "holds a run" in completed.output
    assert {path.name for path in tmp_path.iterdir()} == {RUN_YAML}
