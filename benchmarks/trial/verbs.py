"""Every verb with missing, wrong and unwritable paths, unknown options, and values out of range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.trial.base import CASES, TINY, image_of
from benchmarks.trial.judge import Expect
from benchmarks.trial.run import Box, Command, Trial

# Sound arguments of each verb. SOURCE, RUN, IMAGE and OUT are replaced; what a trial spoils is one of them.
VERBS: dict[str, str] = {
    "train": "train SOURCE --out OUT --quiet",
    "plan": "plan SOURCE --out OUT.json",
    "launch": "launch --nproc 1 SOURCE --out OUT --quiet",
    "predict": "predict RUN IMAGE --out OUT",
    "export": "export RUN --out OUT.safetensors",
    "report": "report RUN --out OUT.html",
    "watch": "watch RUN --once",
    "profile": "profile SOURCE --out OUT --steps 2",
    "tune": "tune SOURCE --out OUT",
    "doctor": "doctor SOURCE --out OUT --steps 2 --seconds 1",
    "phantom": "phantom --out OUT --cases 1 --shape 8 16 16",
    "recipe phantom": "recipe phantom spleen --reduced --cases 6 --to OUT",
    "recipe data": "recipe data spleen --to OUT",
    "slurm submit": "slurm submit SOURCE --out OUT --tasks-per-node 1 --dry-run",
    "scale run": "scale run SOURCE --worlds 1 --out OUT",
    "scale analyse": "scale analyse RUN",
    "scale predict": "scale predict RUN",
    "cache ls": "cache ls --dir RUN",
    "cache prune": "cache prune --dir RUN",
}

Make = Callable[[Path], object]
INPUTS: dict[str, Make | None] = {
    "missing": None,
    "empty-file": lambda path: path.write_bytes(b""),
    "text-file": lambda path: path.write_text("hello\n"),
    "empty-folder": Path.mkdir,
    "folder-of-text": lambda path: (path.mkdir(), (path / "a.txt").write_text("a")),
    "dangling-link": lambda path: path.symlink_to("nowhere"),
    "link-loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/null"),
    "fifo": lambda path: __import__("os").mkfifo(path),
}
OUTPUTS: dict[str, Make | None] = {
    "file": lambda path: path.write_text("mine"),
    "folder-in-use": lambda path: (path.mkdir(), (path / "mine.txt").write_text("mine")),
    "below-a-file": None,
    "proc": lambda path: path.symlink_to("/proc"),
    "dangling-link": lambda path: path.symlink_to("nowhere/at/all"),
    "link-loop": lambda path: path.symlink_to(path.name),
}


def _arguments(box: Box, verb: str, **spoilt: str) -> list[str]:
    sound = {
        "SOURCE": str(box.base / "volumes"), "RUN": str(box.base / "run"), "OUT": "out",
        "IMAGE": str(image_of(box.base / "volumes", CASES[1])),
    }  # fmt: skip
    words = []
    for word in VERBS[verb].split():
        name = next((name for name in sound if word.startswith(name)), "")
        words.append(word.replace(name, {**sound, **spoilt}[name]) if name else word)
    settings = TINY if "SOURCE" in VERBS[verb] else ()
    return [*words, *settings]


def _input(verb: str, name: str, make: Make | None, box: Box) -> Command:
    if make is not None:
        make(box.folder / "culprit")
    args = _arguments(box, verb, **{name: "culprit"})
    # An empty cache is listed, and a run may be watched from before it writes anything.
    sound = verb.startswith("cache") or (verb, name, make) == ("watch", "RUN", Path.mkdir)
    expect: Expect = "either" if sound else "refused"
    return Command(args=args, names=["culprit"], expect=expect)


def _output(verb: str, kind: str, make: Make | None, box: Box) -> Command:
    ending = {"plan": ".json", "export": ".safetensors", "report": ".html"}.get(verb, "")
    name = "culprit"
    if make is None:
        (box.folder / "culprit").write_text("mine")
        name = "culprit/below"
    else:
        make(box.folder / f"culprit{ending}")
    if verb == "export" and kind == "proc":
        ending = ""
    args = _arguments(box, verb, OUT=name)
    expect: Expect = "refused"
    change = ["out", "cache"]
    if verb in ("predict", "doctor") and kind == "folder-in-use":
        expect = "either"  # which puts its files beside others
    if ending and kind in ("dangling-link", "link-loop"):
        expect = "either"
        change.append(f"culprit{ending}")  # a link that leads nowhere may be replaced
    if verb == "report" and kind == "file":
        expect = "either"
        change.append(f"culprit{ending}")  # a page is there to be made again
    return Command(args=args, names=["culprit"], expect=expect, may_change=change)


def _words(words: str, names: tuple[str, ...], expect: Expect, box: Box) -> Command:
    """Arguments as they are, but for SOURCE, RUN and IMAGE."""
    sound = {"SOURCE": box.base / "volumes", "RUN": box.base / "run", "IMAGE": image_of(box.base / "volumes", CASES[1])}
    return Command(args=[str(sound.get(word, word)) for word in words.split()], names=names, expect=expect)


def _overwrite(verb: str, box: Box) -> Command:
    """What exists already is not replaced unasked."""
    out = {"predict": "out/phantom_001.nii.gz", "export": "out.safetensors", "plan": "out.json"}[verb]
    (box.folder / out).parent.mkdir(exist_ok=True)
    (box.folder / out).write_text("mine")
    return Command(args=_arguments(box, verb), names=[Path(out).name], may_change=("cache",))


# Words after `hasten`, what a message names, and what is wanted; one is wrong in each.
RANGES: dict[str, tuple[str, ...]] = {
    "nonsense": ("nonsense",),
    "--nonsense": ("--nonsense",),
    "train": ("out",),
    "train SOURCE": ("--out",),
    "train --out out": ("SOURCE", "data set"),
    "train SOURCE --out": ("--out",),
    "train SOURCE SOURCE --out out": ("override", "volumes"),
    "train --resume --out nowhere": ("nowhere",),
    "train SOURCE --out out --resum": ("--resum",),
    "plan": ("SOURCE",),
    "plan SOURCE --out nowhere/plan.json": ("nowhere",),
    "predict": ("RUN",),
    "predict RUN": ("INPUT",),
    "predict RUN IMAGE": ("--out",),
    "predict RUN IMAGE --out out --device gpu": ("--device", "gpu"),
    "predict RUN IMAGE --out out --device cuda": ("cuda",),
    "predict RUN IMAGE --out out --device cuda:-1": ("cuda:-1",),
    "predict RUN IMAGE --out out --ending .docx": (".docx", "--ending"),
    "predict RUN IMAGE --out out --ending /../x.nii.gz": ("--ending", "/../x.nii.gz"),
    "predict RUN IMAGE --out out --ending .png": ("--ending", ".png"),
    "predict RUN IMAGE IMAGE --out out": ("phantom_001",),
    "predict SOURCE IMAGE --out out": ("volumes",),
    "predict IMAGE IMAGE --out out": ("phantom_001",),
    "predict RUN RUN --out out": ("run",),
    "export RUN": ("--out",),
    "export RUN --out out.docx": ("out.docx",),
    "export RUN --out out": ("out",),
    "export RUN --out out.onnx --format tflite": ("tflite",),
    "export RUN --out nowhere/out.onnx": ("nowhere",),
    "report": ("RUN",),
    "report RUN nowhere": ("nowhere",),
    "report RUN RUN": ("run",),
    "report RUN --out nowhere/out.html": ("nowhere",),
    "watch": ("RUN",),
    "watch RUN --every 0": ("--every",),
    "watch RUN --every nan": ("--every",),
    "profile SOURCE --steps 0": ("--steps",),
    "doctor SOURCE --steps 1": ("--steps",),
    "doctor SOURCE --seconds 0": ("--seconds",),
    "doctor SOURCE --for rocm": ("--for",),
    "doctor --": ("--",),
    "doctor -- nowhere-program": ("nowhere-program",),
    "doctor -- python nowhere.py": ("nowhere.py",),
    "phantom": ("--out",),
    "phantom --out out --cases 0": ("--cases",),
    "phantom --out out --cases -1": ("--cases",),
    "phantom --out out --shape 0 0 0": ("--shape",),
    "phantom --out out --shape 1 2 3": ("shape",),
    "phantom --out out --shape 8 16": ("--shape", "extra", "out"),
    "phantom --out out --shape 100000 100000 100000": ("shape", "memory"),
    "phantom --out out --spacing 0 1 1": ("--spacing",),
    "phantom --out out --spacing nan 1 1": ("--spacing",),
    "phantom --out out --seed -1": ("--seed",),
    "phantom --out out --seed 1.5": ("--seed",),
    "launch SOURCE --nproc 0 --out out": ("nproc",),
    "launch SOURCE --nproc -1 --out out": ("nproc",),
    "launch SOURCE --nproc 1 --nnodes 0 --out out": ("nnodes",),
    "launch SOURCE --nproc 1 --nnodes 2 --out out": ("master",),
    "launch SOURCE --nproc 1 --nnodes 2 --node-rank 5 --master localhost:1 --out out": ("node-rank", "node_rank"),
    "launch SOURCE --nproc 1 --nnodes 2 --master nonsense --out out": ("master",),
    "launch SOURCE --nproc 1 --nnodes 2 --master localhost:99999 --out out": ("master",),
    "launch SOURCE --nproc 1 --max-restarts -1 --out out": ("max-restarts", "max_restarts"),
    "launch SOURCE --nproc 1 --stall-seconds 0 --out out": ("stall",),
    "launch SOURCE --nproc 1 --stall-seconds nan --out out": ("stall",),
    "launch SOURCE --nproc 1 --join-seconds -1 --out out": ("join",),
    "recipe": ("recipe",),
    "recipe show": ("NAME",),
    "recipe show nonsense": ("nonsense",),
    "recipe data nonsense": ("nonsense",),
    "recipe phantom nonsense --to out": ("nonsense",),
    "recipe phantom spleen --to out --cases 0": ("--cases",),
    "recipe phantom spleen --to out --threads 0": ("--threads",),
    "cache nonsense": ("nonsense",),
    "cache ls --dir nowhere": ("nowhere",),
    "cache prune --unused-days -1": ("--unused-days",),
    "cache prune --unused-days nan": ("--unused-days",),
    "cache prune --max-gib -1": ("--max-gib",),
    "cache prune --max-gib nan": ("--max-gib",),
    "cache prune --max-gib inf": ("--max-gib",),
    "slurm submit SOURCE --out out --dry-run --tasks-per-node 1 --nodes 0": ("nodes",),
    "slurm submit SOURCE --out out --dry-run --tasks-per-node 1 --time nonsense": ("--time", "nonsense"),
    "slurm submit SOURCE --out out --dry-run --tasks-per-node 1 --signal-before -5": ("signal-before",),
    "slurm submit SOURCE --out out --dry-run --tasks-per-node 1 --max-requeues -1": ("max-requeues",),
    "slurm submit SOURCE --out out --dry-run --gpus-per-node -1": ("gpus-per-node", "gpus_per_node"),
    "scale": ("scale",),
    "scale SOURCE": ("--worlds",),
    "scale SOURCE --worlds 0": ("--worlds",),
    "scale SOURCE --worlds nonsense": ("--worlds",),
    "scale SOURCE --worlds 1 --seeds x": ("--seeds",),
    "scale SOURCE --worlds 1 --strategies nonsense": ("nonsense",),
    "scale SOURCE --worlds 1 --schedule nonsense": ("schedule",),
    "scale SOURCE --worlds 100000": ("--worlds", "cores", "workers"),
    "scale analyse nowhere": ("nowhere",),
    "scale analyse SOURCE --epoch x": ("--epoch",),
    "scale analyse SOURCE --baseline 0": ("--baseline",),
    "scale analyse SOURCE --drop nan": ("--drop", "drop"),
}
_ACCEPTED = {
    "predict RUN IMAGE IMAGE --out out",
    "export RUN --out nowhere/out.onnx",
    "report RUN --out nowhere/out.html",
    "report RUN RUN",
    "predict RUN IMAGE --out out --ending .png",
    "cache prune --max-gib inf",
    "recipe",
    "scale",
}


def trials() -> Iterator[Trial]:
    for verb, words in VERBS.items():
        for name in ("SOURCE", "RUN", "IMAGE"):
            if name in words.split():
                for kind, make in INPUTS.items():
                    yield Trial("verbs", f"{verb}/{name}/{kind}", partial(_input, verb, name, make))
        if "OUT" in words:
            for kind, make in OUTPUTS.items():
                # A page may lie among other files, and a folder of data sets hold others.
                if not (verb in ("report", "recipe data") and kind == "folder-in-use"):
                    yield Trial("verbs", f"{verb}/out/{kind}", partial(_output, verb, kind, make))
        yield Trial("verbs", f"{verb}/no-arguments", partial(_bare, verb))
        yield Trial("verbs", f"{verb}/unknown-option", partial(_unknown, verb))
    for verb in ("predict", "export", "plan"):
        yield Trial("verbs", f"{verb}/out/exists", partial(_overwrite, verb))
    for words, names in RANGES.items():
        expect: Expect = "either" if words in _ACCEPTED else "refused"
        yield Trial("verbs", f"words/{words}", partial(_words, words, names, expect))


def _bare(verb: str, box: Box) -> Command:
    words = [word for word in VERBS[verb].split() if not word.startswith("-")]
    names = ("Missing", "Usage", "SOURCE", "RUN", "data set")
    # Without a name they speak of the machine, or of the cache of the user.
    alone = verb == "doctor" or verb.startswith("cache")
    return Command(args=words[: len(verb.split())], names=names, expect="either" if alone else "refused", seconds=60)


def _unknown(verb: str, box: Box) -> Command:
    return Command(args=[*_arguments(box, verb), "--nonsense"], names=["--nonsense"])
