"""The verdict on a command, from what can be seen from outside: exit code, signal, output, files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Expect = Literal["refused", "warned", "accepted", "either"]
"""What a user wants of an input.

`refused`: a non-zero exit code and a clear message. `warned`: that, or exit code 0 and a warning that names the cause.
`accepted`: exit code 0. `either`: exit code 0, or a non-zero one and a clear message.
"""
FAILURES = ("traceback", "silent", "crash", "hang", "damage", "broken")
"""`broken`: the trial itself failed, so that nothing is known."""
VERDICTS = ("handled", "poor", *FAILURES, "skipped")
MOST_LINES = 12
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "([^"]*/hasten/[^"]+)", line (\d+), in (\S+)')
_START = re.compile(r"^\s*(error|usage|warning)\b", re.IGNORECASE)
_REMEDY = re.compile(
    r"\b(must|needs?|should|did you mean|valid here|nearest|don't use|try|at most|at least|\d+ to \d+)\b|"
    r"\bis not (in the range|a valid|one of)\b|\bis no whole number\b|"
    r"\b(requires|only choice is|known are|there are)\b|\bKnown:|"
    r"(?:[;:.,(]|\b(?:or|and|so|to))\s+[`'\"]?(add|allow|ask|check|choose|convert|copy|correct|cut|declare|delete|download|drop|exclude|"
    r"export|fetch|free|give|hasten|install|keep|leave|look|lower|make|move|name|number|omit|only|pass|pip|put|quote|raise|redo|"
    r"remove|rename|repeat|replace|resample|restore|run|save|set|split|start|store|take|train|unset|unpack|use|wait|"
    r"write)\b",
    re.IGNORECASE,
)
"""A rule that the input must meet, or a sentence that says what to do."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
_PROGRESS = re.compile(r"\d+/\d+  |step \d+/\d+")
_BOX = re.compile(r"[\s│─╭╮╰╯]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code, or minus the signal that it died of."""
    text: str
    """stdout, then stderr."""
    err: str = ""
    """stderr alone."""
    hang: bool = False
    """Whether it was still running at its time limit, and was killed."""
    damage: str = ""
    """What it did to files that were not its own; empty if nothing."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    verdict: str
    """One of VERDICTS."""
    why: str = ""
    frame: str = ""
    """The last line of Hasten in a traceback, as FILE:LINE FUNCTION."""
    output: Sequence[str] = field(default=())
    """First lines of the message."""


def judge(ended: Ended, *, expect: Expect, names: Sequence[str]) -> Verdict:
    """The verdict on a command that was to meet `expect`; a clear message has one of `names` in it."""
    lines = message_lines(ended.text)

    def say(verdict: str, why: str = "", frame: str = "") -> Verdict:
        return Verdict(verdict=verdict, why=why, frame=frame, output=[line[:300] for line in lines[:8]])

    if ended.damage:
        return say("damage", ended.damage)
    if ended.hang:
        return say("hang", f"still running after {ended.seconds:.0f} s")
    if ended.code < 0:
        return say("crash", f"died of signal {-ended.code}")
    if _TRACEBACK in ended.text:
        return say("traceback", ended.text.rstrip().rpartition("\n")[2][:300], last_frame(ended.text))
    fault = message_fault(ended.text, names)
    if ended.code == 0:
        if _CONTROL.search(ended.text):
            return say("poor", "control characters reach the terminal")
        if expect in ("accepted", "either"):
            return say("handled")
        if expect == "refused":
            return say("silent", "exit code 0")
        warnings = [line for line in ended.err.splitlines() if line.strip() and not _PROGRESS.match(line)]
        if not warnings:
            return say("silent", "exit code 0 without a warning")
        output = not names or any(name in line for name in names for line in warnings)
        return say("handled") if output else say("poor", f"warns, but names none of: {', '.join(names)}")
    if expect == "accepted":
        return say("poor", "a sound input was refused")
    return say("poor" if fault else "handled", fault)


def message_lines(text: str) -> list[str]:
    """The lines of a command's output from its error, usage or warning on; all of them if there is none."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    start = next((at for at, line in enumerate(lines) if _START.match(line)), 0)
    return lines[start:]


def message_fault(text: str, names: Sequence[str]) -> str:
    """What a message lacks; empty for a clear one: it has one of the names, a remedy, and few lines."""
    lines = message_lines(text)
    message = "\n".join(lines)
    if _CONTROL.search(message):
        return "control characters reach the terminal"
    if not message:
        return "no message"
    # A box that wraps its text may cut a name in two.
    if names and not any(name in message or _BOX.sub("", name) in _BOX.sub("", message) for name in names):
        return f"names none of: {', '.join(names)}"
    if not _REMEDY.search(message):
        return "no remedy"
    return f"{len(lines)} lines" if len(lines) > MOST_LINES else ""


def last_frame(text: str) -> str:
    """FILE:LINE FUNCTION of the last frame of Hasten in the last traceback."""
    frames = _FRAME.findall(text.rpartition(_TRACEBACK)[2])
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f"{path.rpartition('/hasten/')[2]}:{line} {function}"
