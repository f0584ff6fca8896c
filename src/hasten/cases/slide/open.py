"""`open_slide`: one interface to cuCIM, tifffile and OpenSlide."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from hasten.cases.slide.backends import CucimReader, OpenSlideReader, TifffileReader
from hasten.cases.slide.types import Slide, SlideReader
from hasten.cases.tiff import data_end, open_tiff
from hasten.files import first_line

log = logging.getLogger(__name__)

INSTALL = "pip install 'hasten[wsi]'"
INSTALL_CUCIM = "pip install --no-deps cucim-cu12 (--no-deps spares 2 GB of CUDA libraries that reading does without)"
_READERS: dict[str, tuple[str, Callable[[Path], SlideReader]]] = {
    "cucim": ("cucim", CucimReader),
    "tifffile": ("tifffile", TifffileReader),
    "openslide": ("openslide", OpenSlideReader),
}
"""Name, module and reader, the fastest first (benchmarks/pathology.py): OpenSlide knows the most formats."""
BACKENDS = tuple(_READERS)
MASK_BACKENDS = ("tifffile", "openslide", "cucim")
"""Backends in the order for masks, whose single channel cuCIM reads only uncompressed."""
_CLASH = "horovod.torch"
"""A module whose library offers its symbols to all others; cuCIM (26.10) then ends the process on its first read."""
_TIFFS = (".tif", ".tiff", ".svs")


def open_slide(path: str | Path, backend: str | None = None, *, order: tuple[str, ...] = BACKENDS) -> Slide:
    """Open a whole slide with `backend`, or with the first of `order` that is installed and can read it.

    Raises ValueError for a file that is missing, truncated, or that no backend can read (with each error), for an
    unknown backend, and for one that is not installed (with the command that installs it).
    """
    path = Path(path)
    if backend is not None and backend not in _READERS:
        raise ValueError(f"backend: {backend!r} is none; use one of {', '.join(_READERS)}")
    if not path.is_file():
        problem = "is a folder; name the slides in it" if path.is_dir() else "no such slide; check the path"
        raise ValueError(f"{path}: {problem}")
    available = installed()
    if backend == "cucim" and backend not in available and _CLASH in sys.modules:
        raise ValueError(f"{path}: cuCIM can't read in a process that has loaded Horovod; leave the backend open")
    if backend is not None and backend not in available:
        command = INSTALL_CUCIM if backend == "cucim" else INSTALL
        raise ValueError(f"{path}: the backend {backend} is not installed; {command}")
    _check_whole(path)
    errors: list[str] = []
    for name in [backend] if backend is not None else [name for name in order if name in available]:
        try:
            slide = Slide(path, name, _READERS[name][1](path))
        except Exception as error:  # each library has errors of its own
            errors.append(f"{name}: {first_line(error)}")
            continue
        log.debug("%s: %s reads it", path, name)
        return slide
    more = "" if "openslide" in available else f"; OpenSlide knows more formats ({INSTALL})"
    raise ValueError(f"{path}: can't be read as a slide ({'; '.join(errors)}){more}")


def installed() -> tuple[str, ...]:
    """The installed backends, the fastest first; without cuCIM if Horovod is loaded, with which it crashes."""
    names = [name for name, (module, _) in _READERS.items() if importlib.util.find_spec(module) is not None]
    return tuple(name for name in names if name != "cucim" or _CLASH not in sys.modules)


def _check_whole(path: Path) -> None:
    """Raise ValueError for a TIFF that is shorter than its tiles: libraries would invent the missing pixels."""
    if path.suffix.lower() not in _TIFFS:
        return
    try:
        with open_tiff(path) as tiff:
            size, end = tiff.filehandle.size, max(data_end(page) for page in tiff.pages)
    except Exception as error:  # any error of a damaged directory
        raise ValueError(f"{path}: is no TIFF, or cut short ({error}); copy the slide again") from error
    if end > size:
        raise ValueError(f"{path}: is cut short ({size} bytes of at least {end}); copy the slide again")
