"""Run folders whose files are cut off, altered, foreign or malicious, given to every verb that reads a run."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.trial.base import CASES, copied, image_of
from benchmarks.trial.images import SPOILT, Spoil
from benchmarks.trial.judge import Ended, Expect, Verdict
from benchmarks.trial.lists import DEEP
from benchmarks.trial.run import Box, Command, Trial

BEST, LAST = "checkpoints/best.pt", "checkpoints/last.pt"
FILES = (BEST, LAST, "run.yaml", "plan.json", "metrics.jsonl", "summary.json", "env.json", "examples.npz")
VERBS = ("predict", "resume", "export", "report", "doctor", "watch")
_SPOILS = ("empty", "cut-at-half", "random-bytes", "folder", "link-loop")
# What a verb can't do without, and what it should say is wrong.
_NEEDED = {
    ("predict", BEST), ("export", BEST), ("resume", LAST), ("resume", "run.yaml"), ("doctor", "run.yaml"),
}  # fmt: skip
_SHOWN = {
    ("report", "metrics.jsonl"), ("report", "summary.json"), ("report", "plan.json"),
    ("resume", "metrics.jsonl"),
}  # fmt: skip


def arguments(box: Box, verb: str, run: str) -> list[str]:
    match verb:
        case "predict":
            return ["predict", run, str(image_of(box.base / "volumes", CASES[1])), "--out", "out"]
        case "resume":
            return ["train", "--out", run, "--resume", "--quiet"]
        case "export":
            return ["export", run, "--out", "out.safetensors"]
        case "report":
            return ["report", run, "--out", "out.html"]
        case "doctor":
            return ["doctor", run, "--steps", "2", "--seconds", "1"]
    return ["watch", run, "--once"]


def _run(box: Box, verb: str) -> Path:
    return copied(box, "stopped-run" if verb == "resume" else "run", "run")


def _expected(verb: str, file: str, name: str) -> Expect:
    if (verb, file) == ("resume", LAST) and name == "link-loop":
        return "warned"  # as if it were absent
    if (verb, file) in _NEEDED:
        # An empty run.yaml is one of defaults; that it names no data is what can be said.
        return "refused"
    if (verb, file) in _SHOWN and name not in ("empty", "cut-at-half"):
        return "warned"
    return "either"


def _of_run(box: Box, verb: str, names: list[str], expect: Expect) -> Command:
    def check(_: Ended) -> str:
        return "code in the file was run" if (box.folder / "owned").exists() else ""

    change = ("out", "cache", "run") if verb == "resume" else ("out", "cache")
    args = arguments(box, verb, "run")
    return Command(args=args, names=names, expect=expect, may_change=change, check=check, seconds=45)


def _spoilt(file: str, spoil: Spoil, verb: str, expect: Expect, box: Box) -> Command:
    run = _run(box, verb)
    spoil(run / file)
    return _of_run(box, verb, [Path(file).name], expect)


def _absent(file: str, verb: str, box: Box) -> Command:
    run = _run(box, verb)
    (run / file).unlink()
    expect: Expect = "refused" if (verb, file) in _NEEDED else "either"
    if file == LAST and verb == "resume":
        expect = "warned"  # to start anew is sound, but not without a word
    return _of_run(box, verb, [Path(file).name, "checkpoint"], expect)


JSONS: dict[str, str] = {
    "null": "null", "list": "[]", "object": "{}", "number": "5", "nan": "NaN", "deep": DEEP,
    "digits": "[" + "9" * 5000 + "]", "wrong-types": json.dumps(
        {"best": 5, "seconds": [], "target": "x", "step": "x", "loss": {}, "accelerators": 3, "cases": None, "type": [],
         "decisions": 7, "time_s": None, "dice": "high", "event": 3, "kind": "train", "status": 9}),
}  # fmt: skip


def _json(file: str, text: str, verb: str, box: Box) -> Command:
    run = _run(box, verb)
    (run / file).write_text(text + "\n")
    return _of_run(box, verb, [file], "either")


class _Owner:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        import os

        return os.system, ("touch owned",)


def _sealed(path: Path, body: bytes) -> None:
    """With the checksum of a checkpoint, which anybody can make."""
    from hasten.checkpoint import file as checkpoint

    path.write_bytes(body + checkpoint._MARK + hashlib.sha256(body).digest())


def _saved(content: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _opened(path: Path) -> dict[str, Any]:
    from hasten.checkpoint.file import read_checkpoint

    return read_checkpoint(path)


def _pickled() -> bytes:
    import pickle

    return pickle.dumps(_Owner())


BODIES: dict[str, Callable[[], bytes]] = {
    "pickle-with-code": _pickled,
    "torch-file-with-code": lambda: _saved({"model": _Owner()}),
    "tensor": lambda: _saved(_tensor((3,))),
    "list": lambda: _saved([1, 2]),
    "empty-dict": lambda: _saved({}),
    "foreign-state-dict": lambda: _saved({"conv.weight": _tensor((4, 1, 3, 3)), "conv.bias": _tensor((4,))}),
    "foreign-checkpoint": lambda: _saved({"state_dict": {"a": _tensor((4,))}, "epoch": 3}),
    "text": lambda: b"weights",
    "nothing": lambda: b"",
}


def _tensor(shape: tuple[int, ...]) -> Any:
    import torch

    return torch.zeros(shape)


def _body(make: Callable[[], bytes], seal: bool, file: str, verb: str, box: Box) -> Command:
    run = _run(box, verb)
    if seal:
        _sealed(run / file, make())
    else:
        (run / file).write_bytes(make())
    return _of_run(box, verb, [Path(file).name], "refused")


READERS = {BEST: ("predict", "export"), LAST: ("resume",)}
KEYS = {
    BEST: ("weights", "config", "labels", "regions", "region_values", "channels", "spatial_dims", "step"),
    LAST: ("step", "network", "average", "optimizer", "optimizer_name", "scaler", "schedule", "random_state", "extra"),
}
VALUES: dict[str, Any] = {"missing": "", "null": None, "number": 5, "list": [], "object": {}, "text": "x"}


def _key(file: str, key: str, value: Any, verb: str, box: Box) -> Command | Verdict:
    """A key of a checkpoint is given another value."""
    run = _run(box, verb)
    content = _opened(run / file)
    if key not in content:
        return Verdict(verdict="skipped", why=f"checkpoints have no {key} any more")
    if value == "":
        del content[key]
    else:
        content[key] = value
    _sealed(run / file, _saved(content))
    # Some values may be sound for a key: what counts is that none leads to a traceback.
    return _of_run(box, verb, [Path(file).name, "run:"], "either")


def _weights(change: Callable[[Any], Any], file: str, verb: str, expect: Expect, box: Box) -> Command:
    """Every floating-point tensor in the checkpoint goes through `change`."""
    import torch

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return type(value)((key, walk(item)) for key, item in value.items())
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return change(value)
        return value

    run = _run(box, verb)
    _sealed(run / file, _saved(walk(_opened(run / file))))
    return _of_run(box, verb, [Path(file).name, "run:", "weights", "not finite", "NaN"], expect)


WEIGHTS: dict[str, tuple[Callable[[Any], Any], Expect]] = {
    "nan": (lambda t: t * float("nan"), "warned"),
    "inf": (lambda t: t + float("inf"), "warned"),
    "other-shape": (lambda t: t.reshape(-1)[:1], "refused"),
    "half": (lambda t: t.half(), "either"),
    "double": (lambda t: t.double(), "either"),
    "complex": (lambda t: t.to(dtype=__import__("torch").complex64), "refused"),
    "meta": (lambda t: t.to("meta"), "refused"),
}

_SOURCE = "  source: "
EDITS: dict[str, tuple[Callable[[str], str], Expect, tuple[str, ...]]] = {
    "other-data": (lambda t: t.replace("/volumes", "/pictures"), "refused", ("pictures", "run.yaml")),
    "no-data": (lambda t: t.replace("/volumes", "/nowhere"), "refused", ("nowhere",)),
    "other-channels": (lambda t: t.replace("[4, 8]", "[8, 16]"), "refused", ("channels", "last.pt", "run.yaml")),
    "other-network": (lambda t: t.replace("name: unet", "name: segresnet"), "refused", ("network", "last.pt",
        "run.yaml")),
    "other-optimizer": (lambda t: t.replace("optimizer: muon", "optimizer: sgd"), "refused", ("optimizer", "last.pt",
        "run.yaml")),
    "other-patch": (lambda t: t.replace("patch: [8, 16, 16]", "patch: [8, 8, 8]"), "warned", ("patch", "run.yaml")),
    "other-seed": (lambda t: t.replace("train:\n  seed: 0", "train:\n  seed: 9"), "warned", ("seed", "run.yaml")),
    "fewer-steps": (lambda t: t.replace("steps: 160", "steps: 3"), "warned", ("steps", "run.yaml")),
    "unknown-field": (lambda t: t.replace("clip_norm", "klip_norm"), "refused", ("klip_norm",)),
    "negative-steps": (lambda t: t.replace("steps: 160", "steps: -3"), "refused", ("steps",)),
}  # fmt: skip


def _edited(change: Callable[[str], str], expect: Expect, names: tuple[str, ...], box: Box) -> Command:
    run = _run(box, "resume")
    text = (run / "run.yaml").read_text()
    assert change(text) != text
    (run / "run.yaml").write_text(change(text))
    return _of_run(box, "resume", list(names), expect)


def _resume(args: tuple[str, ...], of: str, expect: Expect, names: tuple[str, ...], box: Box) -> Command:
    copied(box, of, "run")
    more = [text.replace("BASE", str(box.base)) for text in args]
    return Command(
        args=["train", *more, "--out", "run", "--resume", "--quiet"], names=names, expect=expect,
        may_change=("out", "cache", "run"), seconds=45,
    )  # fmt: skip


def trials() -> Iterator[Trial]:
    for file in FILES:
        for verb in VERBS:
            for name in _SPOILS:
                act = partial(_spoilt, file, SPOILT[name][0], verb, _expected(verb, file, name))
                # A checkpoint that a verb does not read is tried in one way.
                if (verb, file) in _NEEDED or file not in (BEST, LAST) or name == "random-bytes":
                    yield Trial("runs", f"{file}/{name}/{verb}", act)
            yield Trial("runs", f"{file}/absent/{verb}", partial(_absent, file, verb))
    for file in ("plan.json", "metrics.jsonl", "summary.json", "env.json"):
        for verb in ("report", "watch", "resume"):
            for name, text in JSONS.items():
                yield Trial("runs", f"{file}/json-{name}/{verb}", partial(_json, file, text, verb))
    for file, verbs in READERS.items():
        for verb in verbs:
            for name, make in BODIES.items():
                for seal in (True, False):
                    act = partial(_body, make, seal, file, verb)
                    yield Trial("runs", f"{file}/{name}/{'sealed' if seal else 'plain'}/{verb}", act)
            for key in KEYS[file]:
                for name, value in VALUES.items():
                    if verb != "export" or key in ("weights", "config"):
                        yield Trial("runs", f"{file}/{key}-{name}/{verb}", partial(_key, file, key, value, verb))
            for name, (change, expect) in WEIGHTS.items():
                act = partial(_weights, change, file, verb, expect)
                yield Trial("runs", f"{file}/weights-{name}/{verb}", act)
    for name, (edit, expect, names) in EDITS.items():
        yield Trial("runs", f"run.yaml/edited/{name}", partial(_edited, edit, expect, names))
    for args, of, expect, names in (
        ((), "run", "either", ("run",)),
        (("BASE/pictures",), "stopped-run", "refused", ("pictures",)),
        (("BASE/volumes", "network.channels=[8,16]"), "stopped-run", "refused", ("channels", "last.pt")),
        (("train.steps=5",), "stopped-run", "warned", ("steps",)),
        (("train.nonsense=5",), "stopped-run", "refused", ("nonsense",)),
        (("BASE/nowhere",), "stopped-run", "refused", ("nowhere",)),
        (("BASE/volumes",), "volumes", "refused", ("run",)),
    ):
        yield Trial("runs", f"resume/{of}/{' '.join(args)}", partial(_resume, args, of, expect, names))
