"""A key changes with whatever changes a voxel, and with nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.cache.key import Files, cache_dir, files_of, fingerprint_key, settings_key
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import CacheConfig, PrepareConfig
from tests.cache.sets import SPEC, listing_of, write_case_set

NUMBER = st.sampled_from([0.0, 0.1, 1.0, 2.5])
SPECS = st.builds(
    PrepareConfig,
    orientation=st.sampled_from(["RAS", "LPS", None]),
    spacing=st.tuples(NUMBER, NUMBER, NUMBER),
    intensity=st.sampled_from(["zscore", "window", "none"]),
    window=st.sampled_from([None, (0.0, 1.0), (-100.0, 250.0)]),
    crop_foreground=st.booleans(),
    dtype=st.sampled_from(["float16", "float32"]),
)


@given(one=SPECS, other=SPECS, points=st.integers(1, 3), other_points=st.integers(1, 3))
@settings(max_examples=200)
def test_parameters(one: PrepareConfig, other: PrepareConfig, points: int, other_points: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case_set = write_case_set(Path(folder), [(1, 2, 2)])
        same = (one, points) == (other, other_points)
        assert (key_of(case_set, one, points) == key_of(case_set, other, other_points)) == same
        assert key_of(case_set, one, points) == key_of(case_set, replace(one), points)


@pytest.mark.parametrize("which", ["image", "second channel", "label"])
@pytest.mark.parametrize("change", ["time", "size"])
def test_a_changed_file(small: CaseSet, which: str, change: str) -> None:
    case = small.cases[2]
    assert case.label
    path = {"image": case.image[0], "second channel": case.image[1], "label": case.label}[which]
    before = keys(small)
    status = path.stat()
    if change == "time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    else:
        path.write_bytes(path.read_bytes() + b"\0")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = keys(small)
    assert before[0] != after[0]
    assert before[1] != after[1]
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (keys(small) == before) == (change == "time")


CHANGES: dict[str, Callable[[CaseSet], CaseSet]] = {
    "fewer cases": lambda s: replace(s, cases=s.cases[:-1]),
    "another order": lambda s: replace(s, cases=s.cases[::-1]),
    "another id": lambda s: replace(s, cases=(replace(s.cases[0], id="x"), *s.cases[1:])),
    "swapped channels": lambda s: replace(s, cases=tuple(replace(c, image=c.image[::-1]) for c in s.cases)),
    "no label": lambda s: replace(s, cases=tuple(replace(c, label=None) for c in s.cases)),
    "a channel for a label": lambda s: replace(
        s, cases=tuple(replace(c, image=(*c.image, c.label) if c.label else (), label=None) for c in s.cases)
    ),
    "another label": lambda s: replace(s, labels={**s.labels, 3: "new"}),
    "another label value": lambda s: replace(s, labels={0: "background", 1: "inner", 3: "outer"}),
    "fewer channels": lambda s: replace(s, channels=("only",)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_set(small: CaseSet, change: str) -> None:
    changed = keys(CHANGES[change](small))
    assert changed[0] != keys(small)[0]
    assert changed[1] != keys(small)[1]


def test_content_tells_where_times_do_not(small: CaseSet) -> None:
    path = small.cases[1].image[0]
    status, data = path.stat(), bytearray(path.read_bytes())
    before, exact = key_of(small, SPEC), key_of(small, SPEC, content=True)
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert key_of(small, SPEC) == before
    assert key_of(small, SPEC, content=True) != exact


def test_a_cases_key_does_not_depend_on_its_company(small: CaseSet) -> None:
    whole = files_of(small.cases, CacheConfig()).identities
    assert len(set(whole)) == 4
    assert files_of(small.cases[::-1][1:], CacheConfig()).identities == whole[2::-1]


def test_what_is_known_of_files_serves_just_their_cases(small: CaseSet) -> None:
    known = Files(small.cases, ("known",))
    assert files_of(tuple(small.cases), CacheConfig(), known) is known
    assert files_of(small.cases[:-1], CacheConfig(), known) == files_of(small.cases[:-1], CacheConfig())
    assert identity(small.cases, content=True) != identity(small.cases)


def test_a_file_that_is_gone_is_named(small: CaseSet) -> None:
    small.cases[1].image[0].unlink()
    with pytest.raises(ValueError, match=r"case1_0\.nii: can't be found.*case1"):
        keys(small)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HASTEN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir(CacheConfig()) == tmp_path / ".cache" / "hasten"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir(CacheConfig()) == tmp_path / "xdg" / "hasten"
    monkeypatch.setenv("HASTEN_CACHE", "~/own")
    assert cache_dir(CacheConfig()) == tmp_path / "own"
    assert cache_dir(CacheConfig(dir="~/set")) == tmp_path / "set"


def identity(cases: tuple[Case, ...], *, content: bool = False) -> str:
    return files_of(cases, CacheConfig(hash_content=content)).identity


def keys(case_set: CaseSet) -> tuple[str, str]:
    listing = listing_of(case_set)
    return key_of(case_set, PrepareConfig()), fingerprint_key(listing, identity(listing.cases))


def key_of(case_set: CaseSet, prepare: PrepareConfig, points: int = 9, *, content: bool = False) -> str:
    return f"{settings_key(case_set, prepare, points)} {identity(case_set.cases, content=content)}"


def test_a_url_is_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"cache.dir=s3://bucket/cache: .* folder of this machine"):
        cache_dir(CacheConfig(dir="s3://bucket/cache"))
    monkeypatch.setenv("HASTEN_CACHE", "https://host/cache")
    with pytest.raises(ValueError, match=r"\$HASTEN_CACHE=https://host/cache: "):
        cache_dir(CacheConfig())


def test_a_value_to_ignore_counts(small: CaseSet) -> None:
    keys = {key_of(replace(small, ignore=ignore), SPEC) for ignore in (None, 4, 5)}
    listed = {fingerprint_key(replace(listing_of(small), ignore=ignore), "files") for ignore in (None, 4, 5)}
    assert len(keys) == len(listed) == 3
