"""Whether torch.compile has what it needs on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from hasten.doctor.environment.check import Check, check
from hasten.observe.env import cxx_compiler

_PROGRAM = """\
#include <Python.h>
#include <omp.h>
#include <cmath>
extern "C" double f(int n) {
  double sum = 0;
  #pragma omp parallel for reduction(+:sum)
  for (int i = 0; i < n; ++i) sum += std::sqrt(double(i));
  return sum;
}
"""
_COMPILED = """\
import torch
def f(x):
    return torch.nn.functional.gelu(x) * 2 + 1
x = torch.randn(1000)
result = torch.compile(f, dynamic=False)(x)
assert torch.allclose(result, f(x), atol=1e-5), "the compiled function gives other numbers"
"""
_WITHOUT = "runs are right without it, and some slower"


def check_compiler(*, whole: bool = False, seconds: float = 90.0) -> tuple[Check, ...]:
    """Check that a C++ compiler builds torch's code; `whole`: run torch.compile too, in a separate process."""
    checks = [_builds(seconds)]
    if whole and checks[0].level == "ok":
        checks.append(_compiles(seconds))
    return tuple(checks)


def _builds(seconds: float) -> Check:
    compiler, include = cxx_compiler(), sysconfig.get_paths()["include"]
    if compiler is None:
        remedy = "apt-get install g++ (or conda install cxx-compiler)"
        return check("compiler", "C++ compiler", f"none was found; {_WITHOUT}", remedy)
    with tempfile.TemporaryDirectory(prefix="hasten-doctor-") as folder:
        source, target = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_PROGRAM)
        command = [compiler, "-shared", "-fPIC", "-fopenmp", "-O2", f"-I{include}", str(source), "-o", str(target)]
        begin = time.perf_counter()
        failure = _run(command, seconds)
        elapsed = time.perf_counter() - begin
    if not failure:
        return check("compiler", "C++ compiler", f"{compiler} builds a probe in {elapsed:.1f} s")
    has_headers = Path(include, "Python.h").exists()
    missing = "OpenMP (libgomp)" if has_headers else "Python's headers (apt-get install python3-dev)"
    text = f"{compiler} can't build what torch.compile writes ({failure}); {_WITHOUT}"
    return check("compiler", "C++ compiler", text, f"install {missing}")


def _compiles(seconds: float) -> Check:
    with tempfile.TemporaryDirectory(prefix="hasten-doctor-") as folder:
        # A fresh cache, so that earlier results don't hide a failing compiler.
        begin = time.perf_counter()
        failure = _run([sys.executable, "-c", _COMPILED], seconds, {"TORCHINDUCTOR_CACHE_DIR": folder})
        elapsed = time.perf_counter() - begin
    if not failure:
        text = f"a small function compiles and gives the same numbers, in {elapsed:.0f} s with torch's start"
        return check("compiler", "torch.compile", text)
    remedy = "train.compile=false sample.compile=false, or see what TORCH_LOGS=inductor python says"
    return check("compiler", "torch.compile", f"fails: {failure}", remedy)


def _run(command: list[str], seconds: float, variables: dict[str, str] | None = None) -> str:
    """Run a command; returns "" if it succeeds, else a one-line reason why it failed."""
    environment = {**os.environ, **(variables or {})}
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"took over {seconds:.0f} s"
    except OSError as error:
        return str(error)
    if completed.returncode == 0:
        return ""
    lines = [line for line in completed.stderr.strip().splitlines() if line.strip()]
    message = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return message or f"exit code {completed.returncode}"
