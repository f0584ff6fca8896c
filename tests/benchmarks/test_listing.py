from __future__ import annotations

import pytest

from benchmarks.listing import bend, claims_of


def test_a_line_bends_where_tiles_become_dearer() -> None:
    assert bend((10, 20, 40), (1.0, 2.0, 4.0)) == pytest.approx(1.0)
    assert bend((10, 20, 40), (1.0, 2.0, 6.0)) == pytest.approx(2.0)
    assert bend((10, 20, 40), (2.0, 2.0, 6.0)) is None


def test_goals_are_judged_at_their_size() -> None:
    sizes = (2_000, 20_000, 200_000)
    series = ("plan_second_s", "plan_second_mib", "step_s", "step_mib")
    results = {f"{size}/{name}": [1.0 + size / 20_000] for size in sizes for name in series}
    claims = claims_of(results, sizes)
    assert [claim.value for claim in claims] == [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    assert all(claim.holds for claim in claims)
