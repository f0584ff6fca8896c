"""Scripts, run as a user would: a fault at its line and nothing else, or nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hasten.doctor.script.doctor import judge
from hasten.doctor.script.launch import run_script

SCRIPTS = Path(__file__).parents[1] / "scripts"
SLOW_DATA = """\
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.rand(1, 64, 64), torch.rand(1, 64, 64)


data = Slow()"""
PLAIN = """\
import gc
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
data = TensorDataset(torch.rand(64, 1, 64, 64), torch.rand(64, 1, 64, 64))
loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)
net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 3, padding=1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def steps():
    for _ in range(12):
        for image, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(image), label)
            loss.backward()
            optimizer.step()


steps()
"""
DATA, LOADER, NET = PLAIN.splitlines()[9:12]
STEP, CLEAR, RUN, SEED, SEARCH = (
    "            optimizer.step()", "optimizer.zero_grad()", "\nsteps()\n", "torch.manual_seed(0)\n",
    "torch.backends.cudnn.benchmark = True\n",
)  # fmt: skip


def after_step(*lines: str) -> tuple[str, str]:
    return STEP, "\n".join((STEP, *(f"            {line}" for line in lines)))


SAVE = 'torch.save({"net": net.state_dict(), "history": torch.rand(2_000_000)}, "/dev/shm/hasten-last.pt")  # fault'
VALIDATE = "torch.stack([net(image).mean() for image, _ in DataLoader(data, batch_size=8)])"
FAULTS = [
    ("anomaly-detection", False, [(SEED, SEED + "torch.autograd.set_detect_anomaly(True)  # fault\n")]),
    ("checkpoint-stall", False, [after_step(SAVE)]),
    ("cudnn-benchmark-off", True, [(SEARCH, ""), (NET, NET + "  # fault")]),
    ("data-parallel", True, [(NET, NET + "\nnet = nn.DataParallel(net)  # fault")]),
    ("empty-cache", True, [after_step("torch.cuda.empty_cache()  # fault")]),
    ("gc-collect", False, [after_step("gc.collect()  # fault")]),
    (
        "gradcheck", False,
        [after_step("torch.autograd.gradcheck(torch.sigmoid, torch.rand(4, 4).double().requires_grad_())  # fault")],
    ),
    ("host-read", True, [after_step("loss.item()  # fault")]),
    (
        "no-persistent-workers", False,
        [("(64,", "(24,"), (LOADER, "loader = DataLoader(data, batch_size=8, num_workers=2)  # fault")],
    ),
    ("no-workers", False, [(DATA, SLOW_DATA), (LOADER, "loader = DataLoader(data, batch_size=8)  # fault")]),
    (
        "profiler-on", False,
        [(RUN, "\nwith torch.profiler.profile():  # fault\n    steps()\n")],
    ),
    ("unpinned-memory", True, [(LOADER, "loader = DataLoader(data, batch_size=8, shuffle=True)  # fault")]),
    (
        "validation-share", False,
        [after_step("net.eval()  # fault", "with torch.no_grad():", f"    {VALIDATE}", "net.train()")],
    ),
    ("zero-grad-memset", False, [(CLEAR, "optimizer.zero_grad(set_to_none=False)  # fault")]),
]  # fmt: skip
"""Finding, whether only on a GPU, and what a sound script has in place of what."""


def told_of(command: list[str], cuda: bool = False, fault: str = ""):
    """The findings, less `no-workers` where it isn't the fault: beside other programs a small loader is waited for."""
    run = run_script(command, steps=24, seconds=120, experiments=False, assume_cuda=cuda, quiet=True)
    assert run.ended in ("bounded", "finished"), run.output
    assert run.exit_code == 0
    output = judge(run)
    assert output.diagnosis is not None
    return tuple(each for each in output.findings if each.name == fault or each.name != "no-workers")


@pytest.mark.parametrize(
    ("name", "cuda", "changes"),
    [pytest.param(*one, id=one[0], marks=() if one[0] == "host-read" else pytest.mark.slow) for one in FAULTS],
)
def test_the_fault_is_found_at_its_line_and_nothing_else_is(name, cuda, changes, tmp_path):
    text = PLAIN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "train.py"
    path.write_text(text)
    findings = told_of([sys.executable, str(path)], cuda, name)
    (number,) = (number for number, line in enumerate(text.splitlines(), start=1) if line.endswith("# fault"))
    assert [(each.name, each.where) for each in findings if each.level == "finding"] == [(name, f"{path}:{number}")]
    assert all(each.cure for each in findings)


TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2"]


@pytest.mark.slow
def test_ranks_with_unequal_work():
    path = SCRIPTS / "healthy" / "ddp.py"
    findings = told_of([*TORCHRUN, str(path), "unequal"])
    (line,) = (n for n, text in enumerate(path.read_text().splitlines(), start=1) if text.endswith("# fault"))
    results = [(each.name, Path(each.where).name) for each in findings if each.level == "finding"]
    assert results == [("unequal-ranks", f"{path.name}:{line}")]


def test_nothing_is_found_in_a_plain_script(tmp_path):
    half = "            with torch.autocast('cpu', dtype=torch.bfloat16): loss"
    (tmp_path / "train.py").write_text(PLAIN.replace("            loss", half, 1))
    assert told_of([sys.executable, str(tmp_path / "train.py")], cuda=True) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "lightning_plain", "monai_fast"])
def test_nothing_is_found_in_a_healthy_script(name):
    start = TORCHRUN if name == "ddp" else [sys.executable]
    assert told_of([*start, str(SCRIPTS / "healthy" / f"{name}.py")]) == ()


@pytest.mark.slow
def test_nothing_is_found_in_a_compiled_network(tmp_path):
    (tmp_path / "train.py").write_text(PLAIN.replace(NET, f"{NET}\nnet = torch.compile(net)"))
    assert told_of([sys.executable, str(tmp_path / "train.py")]) == ()


@pytest.mark.slow
def test_the_experiments_run_in_a_real_script_and_none_fails(tmp_path):
    """What they measure is the machine's affair."""
    (tmp_path / "train.py").write_text(PLAIN)
    command = [sys.executable, str(tmp_path / "train.py")]
    run = run_script(command, steps=20, seconds=40, quiet=True, env={"OMP_NUM_THREADS": "1"})
    assert (run.ended, run.exit_code) == ("bounded", 0), run.output
    experiments = run.records[0].experiments
    assert {"workers", "items", "autocast", "channels_last", "doubled_batch", "conv_bias"} <= set(experiments)
    assert [result for result in experiments.values() if "error" in str(result)] == []
