"""A cure as a diff: the call's own text with the arguments changed, and nothing where that is not certain."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.doctor.finding import Edit
from hasten.doctor.script.source import diff_of

WORKERS = Edit(("DataLoader",), (("num_workers", "2"), ("persistent_workers", "True")))
REMOVED = Edit(("collect",))


@pytest.mark.parametrize(
    ("line", "edit", "becomes"),
    [
        ("loader = DataLoader(data)", WORKERS, "loader = DataLoader(data, num_workers=2, persistent_workers=True)"),
        (
            "x = data.DataLoader(a, num_workers=0, shuffle=True)",
            WORKERS,
            "x = data.DataLoader(a, num_workers=2, shuffle=True, persistent_workers=True)",
        ),
        ("x = DataLoader()", WORKERS, "x = DataLoader(num_workers=2, persistent_workers=True)"),
        ("x = {'é': DataLoader(é)}", WORKERS, "x = {'é': DataLoader(é, num_workers=2, persistent_workers=True)}"),
        (
            "a, b = x.to(d), y.to(d)  # both",
            Edit(("to", "cuda"), (("non_blocking", "True"),)),
            "a, b = x.to(d, non_blocking=True), y.to(d, non_blocking=True)  # both",
        ),
    ],
)
def test_arguments_are_set_in_the_users_own_line(tmp_path: Path, line: str, edit: Edit, becomes: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"first = 1\n{line}\nlast = 2\n", encoding="utf-8")
    assert diff_of(f"{path}:2", edit) == (f"-{line}", f"+{becomes}")


def test_a_call_of_several_lines_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("loader = DataLoader(\n    data,\n    batch_size=4,\n)\n")
    for line in (1, 3):
        assert diff_of(f"{path}:{line}", WORKERS) == (
            "-    batch_size=4,",
            "+    batch_size=4, num_workers=2, persistent_workers=True,",
        )


def test_a_statement_goes(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("for step in range(9):\n    gc.collect()\n    train()\n")
    assert diff_of(f"{path}:2", REMOVED) == ("-    gc.collect()",)


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("loader = DataLoader(data, **options)\n", WORKERS),
        ("loader = make_loader(data)\n", WORKERS),
        ("for step in range(9):\n    gc.collect()\n", REMOVED),
        ("freed = gc.collect()\n", REMOVED),
        ("loader = DataLoader(\n", WORKERS),
    ],
)
def test_nothing_is_guessed(tmp_path: Path, text: str, edit: Edit) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    assert diff_of(f"{path}:{text.count(chr(10))}", edit) == ()
    assert diff_of(f"{tmp_path / 'none.py'}:1", edit) == ()
    assert diff_of("", edit) == ()


def test_a_value_of_several_lines_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        'loader = DataLoader(data, sampler=Sampler(\n    "é"), num_workers=len([\n    1]))\n', encoding="utf-8"
    )
    assert diff_of(f"{path}:1", WORKERS) == (
        '-    "é"), num_workers=len([',
        "-    1]))",
        '+    "é"), num_workers=2, persistent_workers=True)',
    )
