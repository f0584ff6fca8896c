from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.config.describe import setting_sections


def listed(*words: str, columns: int = 80) -> str:
    done = CliRunner().invoke(app, ["settings", *words], env={"COLUMNS": str(columns)})
    return done.output


def test_all_settings_are_listed_within_the_terminal_s_width_and_no_word_is_broken() -> None:
    names = [each.name for section in setting_sections() for each in section.settings]
    text = listed()
    assert re.findall(r"^(\S+)$", text, re.M) == names
    assert max(map(len, text.splitlines())) <= 80
    meaning = next(each.meaning for s in setting_sections() for each in s.settings if each.name == "train.budget")
    assert meaning.replace("`", "").split() == listed("train.budget", columns=40).split("default null")[1].split()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("split.fold", ["data.split.fold"]),
        ("data.split.*fold*", ["data.split.fold", "data.split.num_folds"]),
        ("train.budget=3min", ["train.budget"]),
        ("splits_final", ["data.split.by"]),
    ],
)
def test_a_pattern_is_part_of_a_name_or_of_a_description(pattern: str, names: list[str]) -> None:
    assert re.findall(r"^(\S+)$", listed(pattern), re.M) == names


def test_a_value_that_is_left_open_is_null_as_in_yaml() -> None:
    text = listed()
    assert "null: 0.2." in text
    assert "None" not in text
