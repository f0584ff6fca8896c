"""Settings: every field with values of the wrong type, length and range; and YAML files with faults of their own."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.trial.base import TINY, TINY_2D, plan_args, train_args
from benchmarks.trial.judge import Expect
from benchmarks.trial.run import Box, Command, Trial

_NUMBERS: Mapping[str, Expect] = {
    "abc": "refused", "[1, 2]": "refused", ".nan": "refused", ".inf": "refused", "-1": "refused", "0": "either",
    "1000000000000": "either",
}  # fmt: skip
_VALUES: dict[Any, Mapping[str, Expect]] = {
    int: {**_NUMBERS, "1.5": "refused"},
    float: {**_NUMBERS, "1e-300": "either"},
    bool: {"maybe": "refused", "2": "refused", "[]": "refused"},
    str: {"[1]": "refused", "true": "refused", "''": "either", '"\\e[31mred"': "either", '"a\\0b"': "refused"},
    tuple: {"abc": "refused", "[]": "refused", "[1]": "refused", "[1, 2, 3, 4, 5, 6]": "refused",
            "[.nan, .nan, .nan]": "refused", "[.nan, .nan]": "refused", "[-1, -1, -1]": "refused",
            "[-2, -1]": "refused", "5": "refused", "[2, 1]": "refused"},
    dict: {"abc": "refused", "[1]": "refused", "{a: abc}": "refused", "{a: .nan}": "refused", "{a: null}": "refused",
           "{1: 1}": "refused"},
}  # fmt: skip
_CHOICE: Mapping[str, Expect] = {"nonsense": "refused", "[1]": "refused", '"\\e[31mred"': "refused"}
# A value that makes sense where its like does not, or the other way round.
_EXCEPT: Mapping[tuple[str, str], Expect] = {
    ("prepare.window", "[-2, -1]"): "accepted",
    ("prepare.spacing", "[0, 0, 0]"): "accepted",
    ("sample.flip_prob", "[0, 0, 0]"): "accepted",
    ("sample.rotate_deg", "[0, 0, 0]"): "accepted",
    ("train.budget", ".inf"): "either",
    ("data.spatial_dims", "0"): "refused",
    ("data.spatial_dims", "100000000"): "refused",
    ("data.spatial_dims", "1000000000000"): "refused",
    ("data.spatial_dims", "[1]"): "refused",
    ("train.freeze", "[]"): "accepted",
    ("train.freeze", "[a, b, c]"): "either",
    ("observe.trackers", "[]"): "accepted",
    ("infer.flip_axes", "[]"): "accepted",
    ("infer.flip_axes", "[1]"): "accepted",
    ("infer.flip_axes", "[2, 1]"): "accepted",
    ("network.channels", "[2, 1]"): "either",
    ("network.channels", "[1, 2, 3, 4, 5, 6]"): "either",
    ("sample.stages", "[]"): "accepted",
    ("train.milestones", "[]"): "either",
    ("network.strides", "[]"): "refused",
    ("data.regions", "{a: .nan}"): "refused",
    ("data.region_values", "{1: 1}"): "refused",
}


def fields_of(config: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, type) of every field below a settings class."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        name = f"{at}.{field.name}" if at else field.name
        if dataclasses.is_dataclass(hints[field.name]):
            yield from fields_of(hints[field.name], name)
        else:
            yield name, hints[field.name]


def values_of(hint: Any) -> Iterator[tuple[str, Expect]]:
    """(text, what is wanted) of the values to try on a field of a type."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    yield "null", "either" if type(None) in kinds else "refused"
    kind = next(each for each in kinds if each is not type(None))
    origin = typing.get_origin(kind) or kind
    yield from (_CHOICE if origin is typing.Literal else _VALUES[origin]).items()


def _plan(field: str, value: str, expect: Expect, box: Box) -> Command:
    settings = [f"{field}={value}"]
    # A setting that is of use only with another one.
    if field == "data.split.validation":
        settings.append("data.split.by=list")
    return Command(args=plan_args(box.base / "volumes", *settings), names=[field], expect=expect)


def _misspelt(field: str, box: Box) -> Command:
    section, _, name = field.rpartition(".")
    wrong = f"{section}.{name[:-1]}{'y' if name[-1] != 'y' else 'x'}"
    return Command(args=plan_args(box.base / "volumes", f"{wrong}=1"), names=[field, wrong])


def _train(settings: tuple[str, ...], expect: Expect, box: Box) -> Command:
    name = settings[0].partition("=")[0]
    flat = "data.spatial_dims=2" in settings
    data = box.base / ("pictures" if flat else "volumes")
    args = train_args(data, *settings, settings=TINY_2D if flat else TINY)
    return Command(args=args, names=[name, "memory"], expect=expect)


# Faults of a setting that only a training can show.
TRAINED: dict[tuple[str, ...], Expect] = {
    ("sample.batch_size=100000000",): "refused",
    ("sample.batch_size=1000000000000",): "refused",
    ("sample.patch=[100000,100000,100000]",): "refused",
    ("sample.patch=[1,1,1]",): "either",
    ("sample.patch=[7,15,13]",): "either",
    ("sample.patch=[3,3,3]",): "either",
    ("network.channels=[100000000,100000000]",): "refused",
    ("network.channels=[1,1]",): "either",
    ("network.channels=[2,2,2,2,2,2,2,2,2,2]",): "either",
    ("network.strides=[[1000,1000,1000]]",): "refused",
    ("network.strides=[[1,1,1]]",): "accepted",
    ("network.num_res_units=100000000",): "refused",
    ("network.deep_supervision=1000000", "network.name=dynunet", "network.channels=[4,8,16]"): "refused",
    ("network.deep_supervision=1",): "refused",
    ("prepare.num_threads=100000000",): "either",
    ("prepare.spacing=[1e-6,1e-6,1e-6]",): "refused",
    ("prepare.spacing=[0.01,0.01,0.01]",): "refused",
    ("prepare.spacing=[1e9,1e9,1e9]",): "refused",
    ("prepare.spacing=[1e300,1,1]",): "refused",
    ("prepare.window=[1e30,2e30]",): "warned",
    ("prepare.window=[0,1e-300]",): "either",
    ("prepare.window=[30000,31000]",): "warned",
    ("cache.max_points=1000000000000",): "either",
    ("cache.ram=1B",): "either",
    ("cache.dir=/proc/nowhere",): "refused",
    ("cache.dir=/dev/null",): "refused",
    ("cache.home=device",): "either",
    ("train.steps=1000000000", "train.budget=3"): "accepted",
    ("train.steps=1",): "accepted",
    ("train.learning_rate=1e30",): "warned",
    ("train.learning_rate=1e-300",): "either",
    ("train.weight_decay=1e30",): "warned",
    ("train.clip_norm=1e-30",): "either",
    ("train.clip_norm=1e30",): "either",
    ("train.accumulate=1000000",): "warned",
    ("train.accumulate=3",): "either",
    ("train.checkpoint_every=1000000000000",): "either",
    ("train.validate_every=1000000000000",): "either",
    ("train.budget=0.001",): "either",
    ("train.budget=1e300",): "either",
    ("train.target=1e-9",): "either",
    ("train.device=cuda",): "refused",
    ("train.device=cuda:99",): "refused",
    ("train.precision=fp16",): "either",
    ("train.precision=tf32",): "either",
    ("train.activations=1B",): "either",
    ("train.seed=1000000000000000000000",): "either",
    ("train.ema=0.9999999999999999",): "either",
    ("train.warmup_fraction=0.999999",): "either",
    ("train.milestones=[[0.5,1e30]]", "train.schedule=step"): "either",
    ("train.capture=true",): "warned",
    ("infer.batch_size=100000000",): "either",
    ("infer.patch=[100000,100000,100000]",): "either",
    ("infer.overlap=0.99999",): "either",
    ("infer.patch=[1,1,1]", "infer.overlap=0.9"): "either",
    ("loss.gamma=1e300", "loss.name=dice_focal"): "warned",
    ("loss.alpha=1e300", "loss.name=tversky"): "either",
    ("observe.monitor_every=1000000000000",): "either",
    ("distribute.strategy=pipeline",): "either",
    ("distribute.strategy=horovod",): "either",
    ("distribute.backend=nccl",): "either",
    ("distribute.parts=1000000",): "refused",
    ("distribute.parts=2",): "accepted",
    ("data.spatial_dims=2", "sample.patch=[1,32,32]"): "accepted",
    ("sample.patch=[8,32,32]", "data.spatial_dims=2"): "refused",
    ("data.split.fraction=0.999999",): "either",
    ("data.split.fraction=1e-9",): "either",
    ("data.split.num_folds=1000", "data.split.by=fold"): "refused",
    ("data.split.validation=[nobody]", "data.split.by=list"): "refused",
    ("data.split.validation=[phantom_000,phantom_001,phantom_002,phantom_003]", "data.split.by=list"): "refused",
    ("data.regions={a: [1], b: [7]}",): "refused",
    ("data.regions={a: [0]}",): "refused",
    ("data.regions={a: []}",): "refused",
    ("data.regions={}",): "accepted",
    ("sample.scale_range=[1e-9,1e-9]",): "either",
    ("sample.scale_range=[1e30,1e30]",): "either",
    ("sample.stages=[[0.5,0.0001]]",): "either",
}

_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
YAML: dict[str, tuple[str, Expect]] = {
    "tab": ("train:\n\tsteps: 4\n", "refused"), "open-bracket": ("train: {steps: [\n", "refused"),
    "open-quote": ("train: {device: 'cpu\n", "refused"), "alias-bomb": (_BOMB, "refused"),
    "alias-bomb-in-field": (_BOMB + "network: {channels: *a39}\n", "refused"),
    "own-alias": ("train: &a\n  steps: *a\n", "refused"), "unknown-alias": ("train: *nobody\n", "refused"),
    "twice": ("train: {steps: 4}\ntrain: {steps: 5}\n", "refused"),
    "field-twice": ("train: {steps: 4, steps: 5}\n", "refused"), "list": ("- train\n", "refused"),
    "text": ("train\n", "refused"), "number": ("5\n", "refused"), "empty": ("", "refused"),
    "null-section": ("train:\n", "either"), "section-is-a-list": ("train: [1]\n", "refused"),
    "section-is-a-text": ("train: fast\n", "refused"), "unknown-section": ("traim: {steps: 4}\n", "refused"),
    "unknown-field": ("train: {stesp: 4}\n", "refused"), "sexagesimal": ("train: {budget: 1:30}\n", "refused"),
    "sexagesimal-steps": ("train: {steps: 1:30}\n", "refused"), "octal": ("train: {steps: 010}\n", "either"),
    "date": ("train: {steps: 2020-01-01}\n", "refused"), "norway": ("train: {device: no}\n", "refused"),
    "exponent-as-text": ("train: {learning_rate: 1e-3}\n", "accepted"), "include": ("include: other.yaml\n", "refused"),
    "include-tag": ("train: !include other.yaml\n", "refused"),
    "python-tag": ("train: !!python/object/apply:os.system ['touch owned']\n", "refused"),
    "python-name": ("train: {steps: !!python/name:os.system }\n", "refused"),
    "python-module": ("train: !!python/module:antigravity\n", "refused"),
    "binary-tag": ("train: {device: !!binary aGVsbG8=}\n", "refused"),
    "set-tag": ("train: {freeze: !!set {a, b}}\n", "either"), "two-documents": ("train: {steps: 4}\n---\na: 1\n",
        "refused"),
    "merge": ("x: &x {steps: 4}\ntrain: {<<: *x}\n", "refused"), "merge-list": ("train: {<<: [1, 2]}\n", "refused"),
    "complex-key": ("? [a, b]\n: 5\n", "refused"), "null-key": ("null: 5\n", "refused"),
    "number-key": ("train: {5: 4}\n", "refused"), "deep": ("train: " + "[" * 5000 + "]" * 5000, "refused"),
    "deep-mapping": ("train: " + "{a: " * 3000 + "1" + "}" * 3000, "refused"),
    "nul-byte": ("train: {steps: 4}\0\n", "refused"), "escape-codes": ('"\\e[31mtrain": 5\n', "refused"),
    "bidi": ("train: {device: '\u202ecpu'}\n", "refused"), "bom": ("\ufefftrain: {seed: 4}\n", "accepted"),
    "5000-digits": ("train: {steps: " + "9" * 5000 + "}\n", "either"),
    "long-line": ("train: {device: '" + "x" * 500_000 + "'}\n", "refused"),
    "percent": ("%YAML 9.9\n---\ntrain: {seed: 1}\n", "either"),
    "flow-colon": ("train: {steps:4}\n", "refused"), "windows-lines": ("train:\r\n  seed: 4\r\n", "accepted"),
    "json": ('{"train": {"seed": 4}}', "accepted"), "sound": ("train: {seed: 4}\n", "accepted"),
}  # fmt: skip
_RAW_YAML = {
    "latin-1": "train: {device: 'ö'}\n".encode("latin-1"), "utf-16": "train: {seed: 4}\n".encode("utf-16"),
    "binary": bytes(range(256)), "zeros": bytes(300),
}  # fmt: skip


def _yaml(text: str | bytes, expect: Expect, named: bool, box: Box) -> Command:
    data = text if isinstance(text, bytes) else text.encode()
    (box.folder / "culprit.yaml").write_bytes(data)
    args = plan_args("culprit.yaml", *([f"data.source={box.base / 'volumes'}"] if named else []))
    owned = box.folder / "owned"
    return Command(
        args=args,
        names=["culprit.yaml"],
        expect=expect,
        check=lambda _: "code in the YAML ran" if owned.exists() else "",
    )


OVERRIDES: dict[str, Expect] = {
    "train.steps": "refused", "=5": "refused", "train=5": "refused", "train.steps.more=5": "refused",
    "train.steps=": "refused", "train..steps=5": "refused", ".train.steps=5": "refused", "train.steps = 5": "either",
    "TRAIN.STEPS=5": "refused", "steps=5": "refused", "train.steps=[": "refused",
    "train.steps=5 train.seed=4": "refused",
    "--train.steps=5": "refused", "train.steps==5": "refused", "train.steps:5": "refused", "": "refused",
    " ": "refused",
    "train={steps: 5}": "either", "train.__class__=5": "refused", "__init__.x=5": "refused", "0.1=5": "refused",
    "train.\x1b[31m=5": "refused", "data.source=/nowhere": "refused", "train.seed=4": "accepted",
        "train.steps=" + "9" * 5000: "refused",
    "train.budget=1:30:00": "refused",
}  # fmt: skip


def _override(text: str, expect: Expect, box: Box) -> Command:
    args = plan_args(box.base / "volumes", text)
    names = [text.strip()[:100] or "override", text.partition("=")[0].strip(" -.") or "override", repr(text), "train"]
    return Command(args=args, names=names, expect=expect)


def trials() -> Iterator[Trial]:
    from hasten.config.schema import RunConfig

    for field, hint in fields_of(RunConfig):
        if field == "data.source":
            continue
        for value, expect in values_of(hint):
            wanted = _EXCEPT.get((field, value), expect)
            yield Trial("settings", f"{field}={value[:40]}", partial(_plan, field, value, wanted))
        yield Trial("settings", f"{field}/misspelt", partial(_misspelt, field))
    for settings, expect in TRAINED.items():
        yield Trial("trained", " ".join(settings), partial(_train, settings, expect))
    for text, expect in OVERRIDES.items():
        yield Trial("settings", f"override/{text[:40]!r}", partial(_override, text, expect))
    for name, (text, expect) in YAML.items():
        yield Trial("yaml", name, partial(_yaml, text, expect, name != "empty"))
    for name, data in _RAW_YAML.items():
        yield Trial("yaml", name, partial(_yaml, data, "refused", True))
