from __future__ import annotations

import json
from pathlib import Path

from benchmarks.time_limit import claims, merged


def test_claims_are_of_the_arms_that_were_run() -> None:
    quiet, busy, short = "nuclei, 1 min, 0 others", "nuclei, 5 min, 2 others", "phantoms, 0.5 min, 0 others"
    results = {
        f"{quiet}/in_steps": [0.55, 0.61, 0.7],
        f"{quiet}/ended": [0.98, 0.96],
        f"{busy}/in_steps": [0.7],
        f"{busy}/ended": [1.01],
        f"{short}/in_steps": [0.1],
        f"{short}/ended": [0.99],
    }
    made = {claim.name: (claim.value, claim.holds) for claim in claims(results)}
    assert made == {
        f"{quiet}: median share of the limit spent in steps": (0.61, True),
        f"{quiet}: time taken over time asked, the most": (0.98, True),
        f"{quiet}: time taken over time asked, the least": (0.96, False),
        f"{busy}: median share of the limit spent in steps": (0.7, False),
        f"{busy}: time taken over time asked, the most": (1.01, False),
        f"{busy}: time taken over time asked, the least": (1.01, True),
        f"{short}: time taken over time asked, the most": (0.99, True),
        f"{short}: time taken over time asked, the least": (0.99, True),
    }


def test_files_of_parts_are_joined(tmp_path: Path) -> None:
    for name, series in (("a", {"x/s": [1.0]}), ("b", {"x/s": [2.0, 3.0], "y/s": [4.0]})):
        results = {key: {"raw": values} for key, values in series.items()}
        (tmp_path / name).write_text(json.dumps({"results": results}))
    assert merged([tmp_path / "a", tmp_path / "b"]) == {"x/s": [1.0, 2.0, 3.0], "y/s": [4.0]}
