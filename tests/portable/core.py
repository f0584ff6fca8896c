"""The core of the command line in one process, on made-up cases: what it wrote is told in JSON on the last line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hasten.cli.main import app
from hasten.observe.rundir import read_jsonl

SETTINGS = """
train.steps=6 train.validate_every=3 train.checkpoint_every=3 train.device=cpu train.precision=fp32
train.channels_last=false train.compile=false sample.patch=[16,16,16] sample.batch_size=2
network.channels=[4,8] network.strides=[[2,2,2]] network.num_res_units=1 data.split.fraction=0.34
prepare.num_threads=1
"""


def hasten(*arguments: str) -> None:
    """Run a command as `hasten` does, but in this process."""
    print("$ hasten", *arguments, flush=True)
    if code := app(list(arguments), standalone_mode=False):
        raise SystemExit(code)


def main(folder: Path) -> None:
    os.chdir(folder)
    hasten("phantom", "--out", "data", "--cases", "4", "--shape", "24", "24", "24")
    cases = [{"image": f"data/imagesTr/{each.name}", "label": f"data/labelsTr/{each.name}"}
             for each in sorted(Path("data/labelsTr").iterdir())]  # fmt: skip
    rows = ["image,label", *(f"{each['image']},{each['label']}" for each in cases)]
    Path("list.csv").write_bytes("\r\n".join([*rows, ""]).encode())
    Path("list.json").write_bytes(json.dumps({"training": cases}, indent=1).replace("\n", "\r\n").encode())
    hasten("plan", "list.json", "--out", "plan.json", *SETTINGS.split())
    hasten("train", "list.csv", "--out", "run", "--quiet", *SETTINGS.split())
    hasten("train", "--resume", "--out", "run", "--quiet", "train.steps=9")
    hasten("predict", "run", "data/imagesTr", "--out", "masks", "--probabilities", "--device", "cpu")
    hasten("evaluate", "masks", "data/labelsTr")
    hasten("report", "run", "--out", "report.html")
    Path("script.py").write_bytes(SCRIPT)
    hasten("doctor", "--steps", "6", "--seconds", "5", "--out", "doctor", "--", "script.py")
    steps = {line["step"]: line["loss"] for line in read_jsonl(Path("run/metrics.jsonl")) if line["kind"] == "train"}
    modules = ("fcntl", "msvcrt", "resource")
    told = {"losses": steps, "masks": len(list(Path("masks").glob("*.nii.gz"))),
            "hidden": [name for name in modules if not _importable(name)]}  # fmt: skip
    print(json.dumps(told))


def _importable(name: str) -> bool:
    try:
        exec(f"import {name}", {"__name__": "hasten.somewhere"})
    except ModuleNotFoundError:
        return False
    return True


SCRIPT = b"""import torch
net, loader = torch.nn.Conv2d(1, 2, 3), torch.utils.data.DataLoader(torch.rand(64, 1, 16, 16), batch_size=4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in loader:
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
