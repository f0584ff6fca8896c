from __future__ import annotations

import posixpath

from hypothesis import given
from hypothesis import strategies as st

from hasten.observe.trackers.base import Scalar, flat_config, flat_summary, scalars_of


def test_a_record_is_named_by_its_kind_and_keys() -> None:
    record = {
        "kind": "validation",
        "step": 7,
        "time_s": 3.0,
        "dice": 0.5,
        "dice_per_class": {"a": 0.25, "b/c": 1},
        "passed": True,
        "note": "x",
        "nothing": None,
        "nan": float("nan"),
        "inf": float("inf"),
    }
    assert scalars_of(record, step=3, time=11.5) == [
        Scalar("validation/dice", 0.5, 7, 11.5),
        Scalar("validation/dice_per_class/a", 0.25, 7, 11.5),
        Scalar("validation/dice_per_class/b_c", 1.0, 7, 11.5),
    ]


KEYS = st.text(max_size=6) | st.sampled_from([".", "..", "/", "../x", "a//b", ""])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
NESTED = st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3))


@given(record=st.dictionaries(KEYS, NESTED, max_size=4))
def test_no_name_leads_anywhere_but_down(record: dict[str, object]) -> None:
    for scalar in scalars_of({"kind": "train"} | record | {"kind": "train"}, step=0, time=0.0):
        assert scalar.name.startswith("train/")
        assert posixpath.normpath(scalar.name) == scalar.name


def test_settings_and_summary_are_flat() -> None:
    assert flat_config({"a": {"b": (1, 2), "c": None, "d": [[1, 2], [3]]}, "e": True, "f": {}}) == {
        "a.b": "1, 2",
        "a.c": "none",
        "a.d": "(1, 2), (3)",
        "e": True,
    }
    signed = {"data": {"source": "https://me:word@host/brains.zip?signature=abc", "note": "why?"}}
    assert flat_config(signed) == {"data.source": "https://host/brains.zip", "data.note": "why?"}
    summary = {
        "status": "finished",
        "best": {"value": 0.5, "step": None},
        "nan": float("nan"),
        "accelerators": {"x": 1},
    }
    assert flat_summary(summary) == {"status": "finished", "best/value": 0.5}
