"""Scripts that behave badly: each ends in time, says what happened, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.doctor.script import launch
from hasten.doctor.script.doctor import diagnose_script, lines
from hasten.doctor.script.launch import run_script

TRAINS = """
import torch
weight = torch.nn.Parameter(torch.rand(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
def step():
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(launch, "GRACE", 1.0)


def watch(*command: str, steps: int = 8, seconds: float = 60.0, quiet: bool = True, **more):
    return run_script(command, steps=steps, seconds=seconds, experiments=False, quiet=quiet, **more)


def test_the_exit_code_and_the_output_are_the_scripts_own(script, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    run = watch(sys.executable, script("import sys\nprint('so far')\nsys.exit(7)"))
    assert (run.ended, run.exit_code, run.records) == ("crashed", 7, [])
    assert run.output == "so far\n"
    assert list((tmp_path / "tmp").iterdir()) == []
    run = watch(sys.executable, script("import os\nos.kill(os.getpid(), 15)"))
    assert (run.ended, run.exit_code) == ("crashed", 143)


def test_a_script_does_not_get_the_spin_that_hasten_set_for_itself(script, monkeypatch):
    for name, value in {"HASTEN_SPIN": "1", "GOMP_SPINCOUNT": "5"}.items():
        monkeypatch.setenv(name, value)
    assert watch(sys.executable, script("import os; print(os.environ.get('GOMP_SPINCOUNT'))")).output == "None\n"


def test_its_own_traceback_is_shown(script, capfd):
    path = script("raise RuntimeError('of my own')")
    report = diagnose_script([sys.executable, path], steps=5, seconds=30)
    output = capfd.readouterr()
    assert report.exit_code == 1
    assert "RuntimeError: of my own" in output.err
    assert "sitecustomize" not in output.err
    assert "failed with exit code 1" in lines(report)[0]


def test_what_never_trains_is_told_so(script):
    path = script("print('nothing to do')")
    with pytest.raises(ValueError, match="--steps 0"):
        diagnose_script([sys.executable, path], steps=0, seconds=1)
    report = diagnose_script([sys.executable, path], steps=5, seconds=30)
    assert report.exit_code == 0
    assert "never trained" in lines(report)[0]
    assert "imported torch" in lines(report)[0]


def test_what_runs_forever_is_ended_with_all_that_it_started(script, tmp_path):
    path = script(
        f"""
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        """
    )
    run = watch(sys.executable, path, seconds=1.5, setup=6.0)  # time enough to start, on a busy machine too
    assert (run.ended, run.exit_code) == ("never trained", 137)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    gone = [not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids]
    assert gone == [True, True]


def test_stdin_is_passed_through(script):
    path = script("import sys\nprint(sys.stdin.read().upper())")
    code = (
        f"from hasten.doctor.script import run_script\nrun_script([{sys.executable!r}, {path!r}], steps=1, seconds=30)"
    )
    done = subprocess.run([sys.executable, "-c", code], input="a line", capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "A LINE"


def test_ctrl_c_is_passed_on_and_nothing_is_left(script, tmp_path):
    path = script(
        f"""
        import os, time
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            open({str(tmp_path / "told")!r}, "w").write("interrupted")
            raise
        """
    )
    code = (
        # A process that was started in the background has SIGINT ignored, and so have those that it starts.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from hasten.doctor.script import run_script\nrun_script([{sys.executable!r}, {path!r}], steps=1, seconds=500)"
    )
    watcher = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(timeout=30) != 0
    assert (tmp_path / "told").read_text() == "interrupted"
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_the_users_folder_is_left_as_it_was_and_their_sitecustomize_runs(script, tmp_path):
    path = script("import helper\nprint(helper.VALUE, end='')")
    script("VALUE = 3", "helper.py")
    script("print('mine first', end=' ')", "sitecustomize.py")
    before = sorted(str(each) for each in tmp_path.rglob("*"))
    # Python itself keeps the bytecode of `helper` there, unless it is told not to.
    run = watch(sys.executable, path, env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})
    assert run.output == "mine first 3"
    assert sorted(str(each) for each in tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_script_that_swallows_the_end_is_stopped_after_a_grace(script, short_grace):
    path = script(
        TRAINS
        + """
while True:
    try:
        step()
    except BaseException:
        pass
"""
    )
    run = watch(sys.executable, path)
    assert (run.ended, run.exit_code) == ("bounded", 0)
    assert run.records[0].steps == 8


def test_systemexit_and_exception_handlers_do_not_see_the_end_but_finally_does(script):
    path = script(
        TRAINS
        + """
try:
    while True:
        step()
except (SystemExit, Exception):
    print("caught")
finally:
    print("finally")
"""
    )
    run = watch(sys.executable, path)
    assert (run.ended, run.exit_code) == ("bounded", 0)
    assert run.output == "finally\n"


def test_a_script_that_ends_by_itself_is_judged_by_what_it_did(script):
    """The probe's threads end before the interpreter does: one that still frees a tensor of the script aborts it."""
    last = "import atexit, threading\natexit.register(lambda: print([thread.name for thread in threading.enumerate()]))"
    run = watch(sys.executable, script(last + TRAINS + "for _ in range(6): step()\nraise SystemExit(3)"), steps=50)
    assert (run.ended, run.exit_code, run.output) == ("crashed", 3, "['MainThread']\n")
    assert run.records[0].steps == 6


@pytest.mark.slow
def test_a_script_that_hangs_after_some_steps(script, short_grace):
    run = watch(sys.executable, script(TRAINS + "for _ in range(6): step()\nimport time\ntime.sleep(600)"), seconds=30)
    assert run.ended == "timeout"
    assert run.records[0].steps == 6
    assert run.records[0].ended == "running"


@pytest.mark.slow
def test_seconds_end_a_training_that_has_more_steps_to_make(script):
    run = watch(sys.executable, script(TRAINS + "while True: step()"), steps=10**9, seconds=15)
    assert (run.ended, run.exit_code) == ("bounded", 0)
    assert run.records[0].ended == "seconds"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_started_by_the_script_itself_with_workers(script, method):
    path = script(
        f"""
        import os
        import torch
        import torch.multiprocessing as mp
        from torch.utils.data import DataLoader, TensorDataset

        def rank(number):
            os.environ |= {{"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611"}}
            torch.distributed.init_process_group("gloo")
            net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            loader = DataLoader(TensorDataset(torch.rand(64, 8)), batch_size=4, num_workers=1)
            while True:
                for (x,) in loader:
                    net(x).sum().backward()
                    optimizer.step()

        if __name__ == "__main__":
            mp.start_processes(rank, nprocs=2, start_method={method!r})
            print("all ranks ended")
        """
    )
    run = watch(sys.executable, path, seconds=120)
    assert (run.ended, run.exit_code) == ("bounded", 0), run.output
    assert [(each.rank, each.world, each.steps) for each in run.records] == [(0, 2, 8), (1, 2, 8)]
    assert "Traceback" not in run.output
    assert "all ranks ended" in run.output


@pytest.mark.slow
def test_modules_and_shell_scripts_as_commands(script, tmp_path):
    script(TRAINS + "while True: step()", "mine.py")
    run = watch(sys.executable, "-m", "mine", env={"PYTHONPATH": str(tmp_path)})
    assert (run.ended, run.records[0].steps) == ("bounded", 8)
    shell = script(f"{sys.executable} {tmp_path / 'mine.py'}\necho then $?", "run.sh")
    run = watch("bash", shell)
    assert (run.ended, run.records[0].steps) == ("bounded", 8)
    assert run.output == "then 0\n"


@pytest.mark.slow
def test_json_is_all_that_is_told_and_files_are_written(script, tmp_path):
    path = script(TRAINS + "while True:\n    step()\n    print('noise')")
    options = ["--json", "--steps", "8", "--out", str(tmp_path / "told")]
    result = CliRunner().invoke(app, ["doctor", *options, "--", sys.executable, path])
    assert result.exit_code == 0
    output = json.loads(result.stdout)
    assert output["ended"] == "bounded"
    assert output["split"]["step_s"] > 0
    assert json.loads((tmp_path / "told" / "doctor.json").read_text())["findings"] == output["findings"]
    assert "bound" in (tmp_path / "told" / "doctor.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torch.compile(net)", "net", "torch.compile(lambda x: net(x.to(torch.float32)))"])
def test_what_is_compiled_is_compiled_as_without_the_probe(script, how):
    path = script(
        f"""
        import torch
        from torch import nn
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        call = {how}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            call(torch.rand(2, 1, 8, 8)).mean().backward()
            optimizer.step()
        from torch._dynamo.utils import counters
        print(*(sorted(counters[name].items()) for name in ("stats", "graph_break", "frames")))
        """
    )
    alone = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=200, check=True)
    run = watch(sys.executable, path, steps=50, seconds=200)
    assert run.ended == "finished"
    assert run.output == alone.stdout


@pytest.mark.slow
def test_networks_that_are_saved_whole_or_copied_carry_nothing_of_the_probe(script, tmp_path):
    path = script(
        f"""
        import copy
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        def step():
            net(torch.rand(2, 4)).sum().backward()
            optimizer.step()
        for _ in range(4):
            step()
        torch.save(net, {str(tmp_path / "net.pt")!r})
        copy.deepcopy(net)(torch.rand(2, 4))
        for _ in range(4):
            step()
        """
    )
    run = watch(sys.executable, path, steps=50)
    assert run.ended == "finished", run.output
    assert sum(run.records[0].raw["shapes"].values()) == 7
    import torch

    saved = torch.load(tmp_path / "net.pt", weights_only=False)
    assert len(saved._forward_hooks) == len(saved._forward_pre_hooks) == 0
