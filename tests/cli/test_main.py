from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import hasten
from hasten.cli.main import app
from hasten.config.load import dump_run, load_run
from hasten.config.schema import RunConfig
from hasten.observe.rundir import RUN_YAML


class Calls(list[tuple[Any, ...]]):
    """What the verbs asked of the layers below."""

    report_failure: BaseException | None = None
    summary: dict[str, Any] = {  # noqa: RUF012
        "target": {"metric": "mean_dice", "value": None, "reached": False, "time_s": None},
        "best": {"metric": "mean_dice", "value": 0.91234, "step": 120},
        "seconds": {"total": 12.34, "train": 8.0},
        "earlier_seconds": 0.0,
        "wait_share": 0.0123,
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Stands in for the engine, the report and the phantoms, which have tests of their own."""
    made = Calls()

    def train(
        config: RunConfig,
        out: Path,
        *,
        resume: bool,
        **_: Any,
    ) -> dict[str, Any]:
        made.append(("train", config, out, resume))
        return made.summary

    def write_report(runs: list[Path], out: Path) -> Path:
        made.append(("report", runs, out))
        if made.report_failure is not None:
            raise made.report_failure
        return out

    monkeypatch.setitem(sys.modules, "hasten.training.run", SimpleNamespace(train=train))
    monkeypatch.setitem(sys.modules, "hasten.report.page", SimpleNamespace(write_report=write_report))
    return made


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"target": {"value": 0.85, "reached": True, "time_s": 61.27}},
            ["best Dice  0.9123 at step 120", "target     Dice 0.85 reached after 61.3 s", "time       12.3 s"],
        ),
        (
            {"best": {"metric": "mean_iou", "value": 0.8, "step": 7}},
            ["best IoU   0.8000 at step 7", "time       12.3 s"],
        ),
        (
            {"seconds": {"total": 112.34, "train": 8.0}, "earlier_seconds": 100.0},
            ["best Dice  0.9123 at step 120", "time       112.3 s, 100.0 s of them before this resumption"],
        ),
    ],
)
def test_the_end_of_a_run_says_what_came_of_it(
    calls: Calls, data: Path, tmp_path: Path, changes: dict[str, Any], lines: list[str]
) -> None:
    calls.summary = {**Calls.summary, **changes}
    result = run("train", data, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[: len(lines) + 1] == [
        *lines,
        "waiting    1.2% of the training time was spent waiting for data",
    ]


def test_resume_takes_the_runs_own_settings(calls: Calls, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    config = load_run(None, [f"data.source={data}", "train.steps=9"])
    (out / RUN_YAML).write_text(dump_run(config))
    for words, expected in [
        ((), config),
        ((data,), config),
        (("train.budget=60",), load_run(out / RUN_YAML, ["train.budget=60"])),
    ]:
        calls.clear()
        result = run("train", *words, "--resume", "--out", out)
        assert result.exit_code == 0, result.output
        assert calls[0][1] == expected
        assert calls[0][3] is True


def test_resume_refuses_another_data_set_and_a_folder_without_a_run(calls: Calls, data: Path, tmp_path: Path) -> None:
    (tmp_path / RUN_YAML).write_text(f"data: {{source: {data}}}\n")
    result = run("train", tmp_path, "--resume", "--out", tmp_path)
    assert result.exit_code == 2
    assert f"was trained on {data}" in result.stderr
    result = run("train", "--resume", "--out", data)
    assert result.exit_code == 2
    assert "holds no run to resume" in result.stderr
    assert calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train",), "name a data set or a run's YAML"),
        (("train", "train.steps=5"), "train.steps=5: a data set or a run's YAML must come"),
        (("train", "{tmp}/none"), "{tmp}/none: no such file or folder"),
        (("train", "{tmp}/empty.yml"), "{tmp}/empty.yml: names no data set"),
        (("train", "{tmp}", "train.stesp=5"), "did you mean train.steps?"),
        (("train", "{tmp}", "data.source=x"), "data.source is given twice"),
        (("plan", "{tmp}"), "the folder {tmp}/o does not exist"),
        (("phantom", "--shape", "8", "0", "8"), "--shape 8 0 8: must be three sizes"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    calls: Calls, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty.yml").write_text("train: {steps: 5}\n")
    filled = [word.format(tmp=tmp_path) for word in words]
    result = run(*filled, "--out", tmp_path / "o" / "x")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message.format(tmp=tmp_path) in result.stderr
    assert result.stderr.count("\n") == 1
    assert calls == []


def test_the_version_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "hasten", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hasten {hasten.__version__}\n"


def helps() -> list[list[str]]:
    """Every verb, and every verb of a group of them."""
    found: list[list[str]] = []

    def look(command: Any, words: list[str]) -> None:
        found.append(words)
        for name, verb in getattr(command, "commands", {}).items():
            look(verb, [*words, name])

    look(typer.main.get_command(app), [])
    return found


def test_no_verb_is_lost() -> None:
    verbs = """doctor evaluate export launch nnunet phantom plan predict profile report settings train tune view warm
    watch cache cache-ls cache-prune recipe recipe-data recipe-list recipe-phantom recipe-show
    scale scale-analyse scale-predict scale-run slurm slurm-submit"""
    assert sorted("-".join(words) for words in helps() if words) == sorted(verbs.split())


@pytest.mark.parametrize("words", helps(), ids=" ".join)
def test_help_shows_whole_names_and_sentences_at_80_columns(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    for parameter in command.params:
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert re.search(rf"(?m)^ +.*{re.escape(option)}\b", result.output), option
    shown = " ".join(result.output.split())
    assert " ".join(command.help.partition("\n\n")[0].split()) in shown
    for verb in getattr(command, "commands", {}).values():
        assert " ".join(verb.help.partition("\n\n")[0].split()) in shown


def test_a_mistake_of_an_export_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(tmp_path / "absent"), "--out", str(tmp_path / "model.onnx")])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'absent'}: no such run; name the folder of a training run, or its best.pt\n"
    )
