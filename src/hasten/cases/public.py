"""Public data sets by name: where they are, how large, under which licence; and fetching one into a folder.

Sizes are of the archive, rounded as its publisher gives them. The Decathlon's archives and their MD5 sums are those of
`monai.apps.DecathlonDataset`.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hasten.cases.remote import Downloader
from hasten.config.size import size_text
from hasten.config.url import shown
from hasten.files import expanded

_CITE_MSD = "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13:4128 (2022)"
_MIB, _GIB = 1 << 20, 1 << 30
HOME = "HASTEN_DATA"
"""Environment variable with the folder of the public sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicSet:
    """A data set that is free to download."""

    name: str
    title: str
    folder: str
    """Name of the folder it unpacks to."""
    page: str
    """Address at which its publisher describes it."""
    licence: str
    """Name and address of the licence."""
    citation: str
    cases: int
    """Number of labelled cases."""
    size_bytes: int
    """Approximate size of the download."""
    by_hand: str = ""
    """What to do where its publisher has no archive; empty where MONAI names one."""


def _decathlon(task: str, title: str, cases: int, size: float) -> PublicSet:
    return PublicSet(
        name=task.partition("_")[2].lower(),
        title=f"MSD {title}",
        folder=task,
        page="http://medicaldecathlon.com",
        licence="CC-BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/)",
        citation=_CITE_MSD,
        cases=cases,
        size_bytes=round(size),
    )


PUBLIC: Mapping[str, PublicSet] = {
    each.name: each
    for each in (
        _decathlon("Task01_BrainTumour", "brain tumour, MR, 4 channels", 484, 7.09 * _GIB),
        _decathlon("Task02_Heart", "left atrium, MR", 20, 434 * _MIB),
        _decathlon("Task03_Liver", "liver and tumours, CT", 131, 26.9 * _GIB),
        _decathlon("Task04_Hippocampus", "hippocampus, MR", 260, 27.1 * _MIB),
        _decathlon("Task05_Prostate", "prostate, MR, 2 channels", 32, 228 * _MIB),
        _decathlon("Task06_Lung", "lung tumours, CT", 63, 8.53 * _GIB),
        _decathlon("Task07_Pancreas", "pancreas and tumours, CT", 281, 11.4 * _GIB),
        _decathlon("Task08_HepaticVessel", "hepatic vessels and tumours, CT", 303, 8.74 * _GIB),
        _decathlon("Task09_Spleen", "spleen, CT", 41, 1.50 * _GIB),
        _decathlon("Task10_Colon", "colon cancer, CT", 126, 5.81 * _GIB),
        PublicSet(
            name="membrane",
            title="ISBI 2012 serial-section EM of the Drosophila ventral nerve cord, with membranes",
            folder="membrane",
            page="http://brainiac2.mit.edu/isbi_challenge/",
            licence="non-commercial segmentation research, with citation (http://brainiac2.mit.edu/isbi_challenge/)",
            citation="Arganda-Carreras et al., Frontiers in Neuroanatomy 9:142 (2015)",
            cases=30,
            size_bytes=15 * _MIB,
            by_hand="register at its page, save every section as images/NAME.png and its labels as labels/NAME.png "
            "(0 membrane, 255 cell)",
        ),
        PublicSet(
            name="camelyon16",
            title="CAMELYON16 whole slides of sentinel lymph nodes, with outlined metastases",
            folder="CAMELYON16",
            page="https://camelyon16.grand-challenge.org/Data/",
            licence="CC0 1.0 (https://creativecommons.org/publicdomain/zero/1.0/)",
            citation="Ehteshami Bejnordi et al., JAMA 318:2199 (2017)",
            cases=270,
            size_bytes=700 * _GIB,
            by_hand="copy what you need of s3://camelyon-dataset/CAMELYON16/, its images as slides/NAME.tif and its "
            "annotations as masks/NAME.xml; slides are 0.3 to 6 GiB each",
        ),
    )
}


def public_set(name: str) -> PublicSet:
    """A set by name, or by the name of its folder. Raises ValueError, naming the most similar one."""
    for public in PUBLIC.values():
        if name.lower() in (public.name, public.folder.lower()):
            return public
    similar = difflib.get_close_matches(name.lower(), PUBLIC, n=1)
    raise ValueError(
        f"no public data set is called {name!r}{f'; did you mean {similar[0]}?' if similar else ''} Known: "
        f"{', '.join(PUBLIC)}."
    )


def data_home() -> Path:
    """The folder of public sets: $HASTEN_DATA, else hasten-data in the user's home. Raises ValueError without one."""
    named = os.environ.get(HOME)
    if named:
        return expanded(named)
    try:
        return expanded("~/hasten-data")
    except ValueError as error:
        raise ValueError(f"no folder for public data: this user has no home folder; set ${HOME} to one") from error


def described(public: PublicSet) -> str:
    """The content, size and licence of a set, in one sentence."""
    return (
        f"{public.title}: {public.cases} labelled cases, about {size_text(public.size_bytes)}, {public.licence}; "
        f"{public.page}"
    )


def absent(public: PublicSet, path: Path) -> ValueError:
    """The error for a set that is missing at `path`: what to fetch, its size and its licence."""
    if public.by_hand:
        get = f"there is no archive: {public.by_hand}"
    else:
        get = f"`hasten recipe data {public.name}` fetches it to {data_home() / public.folder}"
    return ValueError(
        f"{path}: is not there. It should be {described(public)}. {get}; or name a copy of yours with "
        f"data.source=FOLDER, or the folder that holds it with ${HOME}."
    )


def download(public: PublicSet, to: Path | None = None) -> Path:
    """Fetch and unpack a set below `to` (None: the home of public sets); returns its folder. Existing data are kept.

    A broken transfer is resumed, the archive is checked against its MD5 sum, nothing is unpacked outside the
    folder, and the folder appears only when it is whole. The archive is removed afterwards.
    Raises ValueError: no archive, a server or disk that fails, another MD5 sum, an unsafe archive.
    """
    home = expanded(to or data_home()).absolute()
    target = home / public.folder
    if target.is_dir() and any(target.iterdir()):
        return target
    if public.by_hand:
        raise ValueError(f"{public.name}: its publisher has no archive to fetch; {public.by_hand}: {public.page}")
    from monai.apps.datasets import DecathlonDataset  # takes seconds

    url, wanted = DecathlonDataset.resource[public.folder], DecathlonDataset.md5[public.folder]
    archive = Downloader(home / ".archives").fetch(url)
    with archive.open("rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != wanted:
        archive.unlink()
        raise ValueError(f"{shown(url)}: has the MD5 sum {md5}, not {wanted}, and was removed; fetch it again.")
    _unpack(archive, target)
    archive.unlink(missing_ok=True)
    return target


def _unpack(archive: Path, target: Path) -> None:
    """Unpack the archive's folder of the target's name to become `target`; nothing is left behind on failure."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=".partial", dir=target.parent) as fresh:
        try:
            with tarfile.open(archive) as file:
                file.extractall(fresh, filter="data")
        except tarfile.FilterError as error:
            raise ValueError(f"{archive}: is not unpacked: {error}. Don't use this archive.") from None
        except OSError as error:
            raise ValueError(f"{target}: can't be written ({error}); free some space or name another folder.") from None
        if target.is_dir():
            if any(target.iterdir()):  # another process was faster
                return
            target.rmdir()
        Path(fresh, target.name).rename(target)
