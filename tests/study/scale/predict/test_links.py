"""Links by name and by file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from hasten.study.scale.predict.links import LINKS, link_of


def test_every_named_link_tells_where_it_is_from_and_faster_names_are_faster() -> None:
    assert all(link.note and link.name == name for name, link in LINKS.items())
    for family in (("ib100", "ib200", "ib400"), ("eth1", "eth10", "eth25", "eth100"), ("nvlink3", "nvlink4")):
        rates = [LINKS[name].bytes_per_s for name in family]
        assert rates == sorted(rates)


def test_an_unknown_name_gets_those_near_it() -> None:
    with pytest.raises(ValueError, match=r"--inter ib40: .*did you mean ib400.*nvlink4.*JSON file"):
        link_of("ib40", "--inter")
    with pytest.raises(ValueError, match=r"--link zzz: no such link; there are nvlink4"):
        link_of("zzz")


def test_a_measured_link_is_read_back_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(asdict(LINKS["eth25"])))
    assert link_of(str(path)) == LINKS["eth25"]
    path.write_text(json.dumps({"latency_s": 1e-5, "bytes_per_s": 1e9, "trees": False}))
    result = link_of(str(path))
    assert (result.name, result.trees) == ("mine", False)
    path.write_text(json.dumps({"latency_s": 1e-5, "bytes_per_s": 0}))
    with pytest.raises(ValueError, match=r"mine.json: bytes_per_s .*at least 1 \(it is 0\)"):
        link_of(str(path))
    path.write_text(json.dumps({"bytes_per_s": 5, "latency_s": "soon"}))
    with pytest.raises(ValueError, match="latency_s must be a number"):
        link_of(str(path))
    path.write_text("{")
    with pytest.raises(ValueError, match=r"mine.json: can't be read as a link"):
        link_of(str(path))
    with pytest.raises(ValueError, match=r"absent.json: can't be read as a link"):
        link_of(str(tmp_path / "absent.json"))
