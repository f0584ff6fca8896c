"""The probe in other environments than Hasten's: older Pythons, older releases of torch, or none that it can watch."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.doctor.script import launch
from hasten.doctor.script.doctor import diagnose_script, lines
from hasten.doctor.script.launch import run_script

FILES = sorted(launch.INJECT.rglob("*.py"))
MINORS = (9, 10, 11, 12, 13)
# What the probe uses of the standard library. A module that Python 3.9 lacks must not come in.
_NAMES = """
__future__ atexit collections contextlib copy dis functools gc importlib itertools json multiprocessing os pathlib
random site statistics sys sysconfig threading time typing warnings weakref
"""
LIBRARY = frozenset(_NAMES.split())
# As much of torch as the watching needs: optimizers that call their hooks, and any other name as an empty class.
TORCH = """
import importlib.machinery, sys, types

class Module(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__") or name in self.absent:
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **kwargs: None, "numel": lambda self: 3})
        setattr(self, name, made)
        return made
    absent = ()

class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.startswith("torch.") else None
    def create_module(self, spec):
        return Module(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.append(Finder())
torch = sys.modules[__name__]
torch.__class__ = Module
import torch.amp, torch.autograd.profiler, torch.compiler, torch.cuda.amp, torch.distributed, torch.nn.modules.module
import torch.backends.cudnn, torch.optim.optimizer, torch.profiler, torch.utils.data.dataloader
import torch._utils, torch.utils.data._utils.fetch
torch.__version__ = "2.1.0"
torch.amp.absent = ("GradScaler",)
torch.compiler.absent = ("is_compiling",)
torch._utils.is_compiling = torch.distributed.is_available = torch.cuda.is_available = lambda: False
torch.are_deterministic_algorithms_enabled = lambda: False
torch.get_num_threads = lambda: 1
torch.cuda.device_count = lambda: 0

class Optimizer:
    hooks = [], []
    def __init__(self, params):
        self.param_groups = [{"params": params}]
    def zero_grad(self, set_to_none=True):
        pass
    def step(self):
        for hook in self.hooks[0]: hook(self, (), {})
        for hook in self.hooks[1]: hook(self, (), {})

torch.optim.Optimizer = torch.optim.optimizer.Optimizer = Optimizer
torch.optim.optimizer.register_optimizer_step_pre_hook = Optimizer.hooks[0].append
torch.optim.optimizer.register_optimizer_step_post_hook = Optimizer.hooks[1].append
"""
TRAINS = """
import torch
torch.nn.Module()
optimizer = torch.optim.Optimizer([])
for _ in range(20):
    optimizer.step()
print("end")
"""


def python(minor: int) -> str:
    """An interpreter of this version, on the PATH or among pyenv's; skips the test without one."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found = [str(path) for path in root.glob(f"versions/3.{minor}.*/bin/python")] + [f"python3.{minor}"]
    for each in filter(shutil.which, found):
        # A shim of pyenv is there for versions that are not.
        if subprocess.run([each, "-c", ""], capture_output=True, timeout=60).returncode == 0:
            return each
    pytest.skip(f"no Python 3.{minor} here")


@pytest.fixture
def stand_in(tmp_path):
    def write(text: str = TORCH) -> tuple[str, dict[str, str]]:
        """A script, and the environment in which it finds a torch of this text."""
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(text)
        (tmp_path / "train.py").write_text(TRAINS)
        return str(tmp_path / "train.py"), {"PYTHONPATH": str(tmp_path)}

    return write


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_probe_is_python_3_9_and_imports_its_library_and_torch_alone(path):
    tree = ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [] if node.level else [str(node.module)]
            # Annotations with `|` are not evaluated; elsewhere Python 3.9 has none for types.
            assert node.module != "typing" or {each.name for each in node.names} <= {"Any"}
        else:
            continue
        for name in names:
            assert name == "collections.abc" or name.partition(".")[0] in {*LIBRARY, "torch"}, f"{path.name}: {name}"
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert future, f"{path.name}: without it, annotations are evaluated"


@pytest.mark.parametrize("minor", MINORS)
def test_each_python_has_what_the_probe_takes_from_its_library(minor):
    used = {
        f"{node.value.id}.{node.attr}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in LIBRARY
    }
    assert "os.getpid" in used
    code = f"""
import importlib, importlib.machinery, importlib.util, multiprocessing.util
for each in {sorted(used)}:
    module, name = each.split(".")
    if not hasattr(importlib.import_module(module), name):
        print(each, end=" ")
"""
    done = subprocess.run([python(minor), "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("minor", MINORS)
def test_the_probe_watches_under_each_python(minor, stand_in):
    script, env = stand_in()
    run = run_script([python(minor), script], steps=8, seconds=60, experiments=False, quiet=True, env=env)
    assert (run.ended, run.output) == ("bounded", ""), run.output
    assert [(each.steps, each.raw["torch"]) for each in run.records] == [(8, "2.1.0")]
    assert run.records[0].raw["python"].startswith(f"3.{minor}.")


OLD = """
__version__ = "2.0.1"

class optim:
    class Optimizer:
        def __init__(self, params): pass
        def step(self): pass

class nn:
    Module = object
"""
OTHER = f"{TORCH}\ntorch.autograd.absent = ('set_detect_anomaly',)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (OLD, "RuntimeError: it is 2.0.1; 2.1 is the oldest that can be watched"),
        (OTHER, "AttributeError: set_detect_anomaly"),
    ],
    ids=["too old", "without a name that is needed"],
)
def test_a_script_whose_torch_cannot_be_watched_runs_on_and_is_told_why(text, problem, stand_in, capfd, monkeypatch):
    script, env = stand_in(text)
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    report = diagnose_script([sys.executable, script], steps=8, seconds=60)
    output = capfd.readouterr()
    assert (report.run.ended, report.exit_code, output.out) == ("never trained", 0, "end\n")
    assert "imported torch where the probe could watch it: 2.1 or newer" in lines(report)[0]
    assert output.err == f"hasten doctor: cannot watch torch ({problem})\n"
