"""A model in a folder for others, as `hasten export --format hub` writes it, and the local copy of one on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from hasten.config.networks import NETWORKS
from hasten.config.patterns import first_few
from hasten.config.size import size_text
from hasten.files import expanded, first_line, hash_file
from hasten.observe.folds import POSTPROCESSING_YAML

MODEL = "model.safetensors"
CONFIG_JSON = "config.json"
HASHED = (MODEL, CONFIG_JSON, POSTPROCESSING_YAML)
"""The files of a shared folder that a prediction depends on."""
SUMS = "SHA256SUMS"
"""File with their hashes, as `sha256sum` writes and checks it."""
_LARGEST = 16 << 30
"""Bytes of a repository's files that are downloaded: weights are read into memory."""
_REMEDY = "take the whole folder again from where it was shared, or export it again"


def run_paths(run: str | Path | Sequence[str | Path]) -> list[Path]:
    """The `local_copy` of one or several runs."""
    return [local_copy(each) for each in ([run] if isinstance(run, (str, Path)) else run)]


def name_text(name: str | Path) -> str:
    """A path or a name on the hub as a text; a `Path` keeps one slash of hf://."""
    return re.sub(r"^hf:[/\\]+", "hf://", str(name))


def local_copy(name: str | Path) -> Path:
    """A path as it is; of hf://OWNER/NAME or hf://OWNER/NAME@REVISION the folder of its copy in the hub's cache.

    Of a repository that Hasten did not write, its model.safetensors. Only the files of a shared folder are downloaded;
    without a network, an earlier copy is used. Raises ValueError where none of these can be had, or they are too large.
    """
    url = name_text(name)
    if not url.startswith("hf://"):
        return expanded(name)
    repository, _, revision = url.removeprefix("hf://").partition("@")
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{url}: needs huggingface_hub (pip install 'hasten[hub]'); or name a local copy") from None
    version, wanted = revision or None, [*HASHED, SUMS]
    sizes: dict[str, int] = {}
    with suppress(Exception):  # without a network an earlier copy may serve; else the download says what is wrong
        info = huggingface_hub.HfApi().model_info(repository, revision=version, files_metadata=True)
        sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    num_bytes = sum(sizes.get(name, 0) for name in wanted)
    if num_bytes > _LARGEST:
        limit = f"Hasten downloads up to {size_text(_LARGEST)}"
        raise ValueError(f"{url}: has {size_text(num_bytes)} of weights, and {limit}; name a local copy")
    try:
        folder = Path(huggingface_hub.snapshot_download(repository, revision=version, allow_patterns=wanted))
    except Exception as error:  # the libraries below have errors of their own
        raise ValueError(
            f"{url}: can't be fetched ({first_line(error)}); check the name and the network, log in if it is private "
            f"(hf auth login), or name a folder to which `hf download {repository} --local-dir FOLDER` copied it"
        ) from None
    model = folder / MODEL
    if not model.is_file():
        why = "and pickles (.pt, .pth, .bin), which can hold code, are not taken from the hub"
        raise ValueError(f"{url}: has no {MODEL} (but {first_few(list(sizes))}), {why}; ask its owner for safetensors")
    if (folder / SUMS).is_file():
        return folder
    # The cache names large files by their SHA-256, where the file system has links.
    file = model.resolve()
    if len(file.name) == 64 and hash_file(file) != file.name:
        raise ValueError(f"{file}: is not what the hub has of {url} (another SHA-256); remove it and run again")
    return model


def is_shared(file: Path) -> bool:
    """Whether a file of weights lies in a folder that `read_shared` reads."""
    return file.name == MODEL and (file.parent / SUMS).is_file()


def read_shared(folder: Path) -> dict[str, Any]:
    """What the run's best.pt held, but for its settings of data and machine.

    Raises ValueError where a file is missing or has another hash than the folder's SHA256SUMS says, and for a network
    that is code of its author's.
    """
    try:
        sums = dict(line.split("  ")[::-1] for line in (folder / SUMS).read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        remedy = "name a folder that `hasten export --format hub` wrote, with all its files"
        raise ValueError(f"{folder}: has no readable {SUMS}, so it is no shared model; {remedy}") from None
    for name in HASHED:
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: is missing; {_REMEDY}")
        if hash_file(folder / name) != sums.get(name):
            raise ValueError(f"{folder / name}: was changed since it was exported ({SUMS} differs); {_REMEDY}")
    file = folder / CONFIG_JSON
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        network = str(content["config"]["network"]["name"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file}: describes no model ({first_line(error)}); {_REMEDY}") from None
    if network not in NETWORKS:
        raise ValueError(f"{file}: network.name={network} is none of Hasten's, and no code is taken from others")
    return {**content, "weights": read_safetensors(folder / MODEL)}


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Tensors of any shape of a .safetensors file, on the CPU, each under all its names. Raises ValueError."""
    try:
        with safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            other_names = opened.metadata() or {}
    except Exception as error:  # its own error, OSError, and torch's for a type that this torch lacks
        raise ValueError(f"{file}: is damaged, or no safetensors file ({first_line(error)}); restore it") from None
    return tensors | {name: tensors[first] for name, first in other_names.items() if first in tensors}


def safetensors_bytes(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A .safetensors file with these tensors of any shape, bit for bit."""
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[int, torch.Size], str] = {}
    other_names: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and place in names:
            # The format's own way with a tensor of two names (DynUNet's): written once, the other name in the metadata.
            other_names[name] = names[place]
        else:
            names[place] = name
            tensors[name] = tensor.contiguous()
    data = save(tensors, {**metadata, **other_names})
    read = load(data)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    return data
