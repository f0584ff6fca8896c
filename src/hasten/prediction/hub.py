"""A trained network as a folder for Hugging Face's hub: weights, settings, their hashes, and a model card."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Template
from torch import nn

import hasten
from hasten.checkpoint.shared import CONFIG_JSON, HASHED, MODEL, SUMS, safetensors_bytes
from hasten.checkpoint.weights import run_of
from hasten.config.networks import is_own
from hasten.config.settled import PlannedRun
from hasten.config.user_code import is_user_code
from hasten.observe.folds import POSTPROCESSING_YAML
from hasten.observe.rundir import METRICS_JSONL, SUMMARY_JSON, read_jsonl
from hasten.prediction.postprocess import cleanings_bytes, read_cleanings

CARD = "README.md"
"""The model card, with what the hub reads of it at its top."""
_PUBLIC = ("prepare", "sample", "augment", "network", "loss", "train", "infer")
"""Sections of a run that describe the network and its training, and not the data's place or the machine."""


def public_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a best.pt holds beside the weights, without the paths of local files."""
    settings = {name: dict(content["config"].get(name, {})) for name in _PUBLIC}
    settings["network"]["weights"] = None
    for section, field in (("augment", "chain"), ("network", "name"), ("loss", "name")):
        if is_user_code(settings[section].get(field) or ""):
            settings[section][field] = re.split(r"[/\\]", settings[section][field])[-1]
            settings[section].pop("args", None)  # they may be paths, too
    others = {name: value for name, value in content.items() if name not in ("weights", "config")}
    return {"hasten": hasten.__version__, **others, "config": settings}


def hub_files(content: dict[str, Any], config: PlannedRun, network: nn.Module, *, where: str) -> dict[str, bytes]:
    """The files of a folder that `read_shared` reads. content: of a best.pt, `where`, as `read_model` gives it.

    The card names neither cases nor paths, and leaves out what of the run's results is not beside best.pt. Raises
    ValueError for a network of the user's own code.
    """
    if is_own(config.network):
        why = "its network is your own code, which nobody could take from a shared folder"
        raise ValueError(f"{where}: {why}; export it as .safetensors, and share the code beside it")
    run = run_of(Path(where))
    cleanings = read_cleanings(run, content["labels"])
    files = {
        MODEL: safetensors_bytes(network.state_dict(), {"format": "pt"}),
        CONFIG_JSON: f"{json.dumps(public_content(content), indent=2)}\n".encode(),
        POSTPROCESSING_YAML: cleanings_bytes(cleanings),
    }
    sums = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in HASHED)
    summary = json.loads((run / SUMMARY_JSON).read_text(encoding="utf-8")) if (run / SUMMARY_JSON).is_file() else {}
    lines = [line for line in read_jsonl(run / METRICS_JSONL) if line["kind"] == "validation"]
    template = Path(__file__).with_name("model_card.md.j2").read_text(encoding="utf-8")
    card = Template(template, trim_blocks=True, lstrip_blocks=True).render(
        content=content,
        config=config,
        cleanings=cleanings.values(),
        summary=summary,
        scores=next((line for line in reversed(lines) if line["step"] == content["step"]), content),
    )
    return {**files, SUMS: sums.encode(), CARD: card.encode()}
