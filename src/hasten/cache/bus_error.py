"""An explanation when the system ends a process because a mapped cache file was cut short or can't be read (SIGBUS).

No Python code runs in a process after that signal. So a second process waits at a pipe for what `faulthandler` writes
there, which needs neither Python nor memory, and explains it. The process runs this file as a script: no imports.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def bus_error_explained(files: Sequence[Path], resume: str) -> Iterator[None]:
    """Context manager for work on mapped `files`: a bus error prints the one whose size changed, and `resume`.

    Does nothing where faulthandler is on already, as its user wants a traceback.
    """
    if not files or faulthandler.is_enabled():
        yield
        return
    reader, writer = os.pipe()
    sizes = [word for path in files if path.exists() for word in (str(path), str(path.stat().st_size))]
    script = [sys.executable, "-I", "-S", __file__, resume, *sizes]
    # In a new session, so that Ctrl-C does not end it.
    with subprocess.Popen(script, stdin=reader, start_new_session=True):
        os.close(reader)
        faulthandler.enable(writer)
        try:
            yield
        finally:
            faulthandler.disable()
            os.close(writer)


def _explain(fault: str, resume: str, words: Sequence[str]) -> str:
    if "Bus error" not in fault:
        return fault
    sizes = {words[number]: int(words[number + 1]) for number in range(0, len(words), 2)}
    now = {name: Path(name).stat().st_size if Path(name).exists() else 0 for name in sizes}
    cut = [f"{name}: was cut from {sizes[name]} to {now[name]} bytes" for name in sizes if now[name] != sizes[name]]
    reason = "; ".join(cut) or f"{', '.join(sizes)}: a part can't be read from the disk"
    return f"error: {reason} while the run used it; resume with the command below, which prepares it again\n{resume}\n"


if __name__ == "__main__":
    text = sys.stdin.read()
    if text:
        sys.stderr.write(_explain(text, sys.argv[1], sys.argv[2:]))
