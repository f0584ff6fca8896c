"""Build and install Horovod for the torch that is installed here: `python tools/build_horovod.py`.

Takes 4 to 8 minutes, a C++ compiler and cmake, and does nothing where `import horovod.torch` works already. Horovod's
last release says C++14 in two places, and torch's headers need C++17: that is all that is changed. It gets gloo, for
CPUs; HOROVOD_* and MAKEFLAGS of the environment are kept, so that HOROVOD_GPU_OPERATIONS=NCCL builds it for GPUs too.
torch itself is not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.28.1"
OLD, NEW = "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"
# Either one alone fails: in the compiler, or with one symbol defined twice in the linker.
PATCHED = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
NEEDED = ("cloudpickle", "psutil", "pyyaml", "packaging", "setuptools", "wheel")
SETTINGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    # Two compilers at once need 3 GB; more of them run small machines out of memory.
    "MAKEFLAGS": "-j2",
}


def main() -> int:
    if works():
        print(f"horovod: {version()} is installed and works with this torch")
        return 0
    missing = missing_tools()
    if missing:
        print(missing, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        install(build(Path(folder)))
    if not works():
        print("horovod: built and installed, but `import horovod.torch` fails; run it to see why", file=sys.stderr)
        return 1
    print(f"horovod: {version()} is installed")
    return 0


def works() -> bool:
    """Whether this Python can import it; tried in another process, as a broken library can end the one it is in."""
    code = "import horovod.torch"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, cwd="/", check=False).returncode == 0


def version() -> str:
    code = "import horovod; print(horovod.__version__)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def missing_tools() -> str | None:
    """What to install first, or None."""
    lacking = [name for name in ("cmake", "make") if shutil.which(name) is None]
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        lacking.append(os.environ.get("CXX", "g++"))
    if not lacking:
        return None
    return (
        f"horovod: {', '.join(lacking)} not found, and Horovod is built from source; install what is missing "
        "(Debian, Ubuntu: apt install cmake make g++) and run this again"
    )


def build(folder: Path) -> Path:
    """Download, patch and build in `folder`; the wheel."""
    pip("install", "--quiet", *NEEDED)
    pip(
        "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--dest", str(folder),
        f"horovod=={VERSION}",
    )  # fmt: skip
    with tarfile.open(folder / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    source = folder / f"horovod-{VERSION}"
    patch(source)
    print(f"horovod: compiling {VERSION}, which takes some minutes", flush=True)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "wheel"), str(source))
    return next((folder / "wheel").glob("horovod-*.whl"))


def patch(source: Path) -> None:
    """Let both parts be compiled as C++17. Raises SystemExit where the source is not the one that is known."""
    for name in PATCHED:
        path = source / name
        text = path.read_text(encoding="utf-8")
        if text.count(OLD) != 1:
            raise SystemExit(f"{path}: does not say {OLD!r} once; this is not the source of Horovod {VERSION}")
        path.write_text(text.replace(OLD, NEW), encoding="utf-8")


def install(wheel: Path) -> None:
    # Its dependencies are there (NEEDED, torch): resolving them might swap torch for another build.
    pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))


def pip(*words: str) -> None:
    """Run pip of this Python. Raises SystemExit with its code if it fails; it has said why."""
    results = {**SETTINGS, **os.environ}
    # cmake looks for the first `python` of the path.
    results["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{results.get('PATH', '')}"
    done = subprocess.run([sys.executable, "-m", "pip", *words], env=results, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    raise SystemExit(main())
