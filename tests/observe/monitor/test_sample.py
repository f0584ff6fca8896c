"""Samples as records, and back."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hasten.observe.monitor.sample import Gpu, Host, Sample, from_record, to_record

FULL = Gpu(
    index=1,
    util=93.0,
    used=2048.0,
    total=81920.0,
    power_w=402.5,
    sm_mhz=1980.0,
    mem_mhz=2619.0,
    temperature_c=61.0,
    throttle=("power_cap", "sw_thermal"),
)
HOST = Host(
    cpu=85.5,
    own_cores=1.75,
    ram_used=6000.5,
    ram_total=24105.6,
    rss=2100.0,
    load=1.25,
)


def test_a_record_gives_the_sample_back() -> None:
    for sample in (
        Sample(time=12.345, step=70, step_s=0.25, host=HOST, gpus=(FULL, Gpu(index=3))),
        Sample(time=0.0),
    ):
        assert from_record(json.loads(json.dumps(to_record(sample), allow_nan=False))) == sample


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "cpu", "util"]), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["time", "step", "step_s", "host", "gpus"]), values))
def test_whatever_a_file_holds_is_a_sample_or_none(record: dict[str, Any]) -> None:
    sample = from_record(record)
    if sample is not None:
        assert math.isfinite(sample.time)
        json.dumps(to_record(sample), allow_nan=False)
