"""A host's launcher of a tiny job: `python host.py OUT NODE NODES MASTER STEPS [ARG...]`; ends with its exit code.

On one host, MASTER is "-" and there are two ranks; of several hosts, each has one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hasten.distribute.launch.agent import launch
from hasten.distribute.launch.job import Job

if __name__ == "__main__":
    out, node, nodes, master, *rest = sys.argv[1:]
    job = Job(
        nproc=2 if nodes == "1" else 1,
        out=Path(out),
        nnodes=int(nodes),
        node_rank=int(node),
        master=None if master == "-" else master,
        stall_s=4.0 if "slow" in rest else None,
        join_s=20.0,
    )
    command = ["-m", "tests.distribute.launch.rank", out, *rest]
    try:
        sys.exit(launch(job, command, again="AGAIN", resume="RESUME"))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
