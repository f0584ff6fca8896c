"""Metrics over two processes: bit for bit what one process finds, however the cases are shared out."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.evaluation.metric_rank import CASES, SHARES, results
from tests.processes import Program


def test_two_ranks_find_what_one_does(tmp_path: Path) -> None:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    meet = str(tmp_path / "meet")
    ranks = [Program("-m", "tests.evaluation.metric_rank", str(rank), "2", meet, env=environment) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=600)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0]
    wanted = results(list(range(CASES)))
    for output in outputs:
        result, none, differing = json.loads(output.splitlines()[-1])
        assert len(result) == len(SHARES)
        for one in result:
            assert one == wanted
        assert "no case was counted" in none
        assert "[(2, 4), (3, 4)]" in differing
