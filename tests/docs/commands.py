"""A line of a shell block held against the real command line: verbs, options, values and settings."""

from __future__ import annotations

import re
import shlex
from typing import Any

import reference_pages as made

from hasten.config.load import load_run
from tests.docs.reading import Block


def command_lines(block: Block) -> list[str]:
    """The commands of a shell block that are Hasten's, continued lines joined, comments and `$ ` taken off."""
    if block.language not in ("", "shell", "bash", "sh", "console"):
        return []
    lines = re.sub(r"\s*\\\n\s*", " ", block.text).splitlines()
    results = []
    for line in lines:
        for part in re.split(r"\s&&\s", line.strip().removeprefix("$ ")):
            plain = re.sub(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?=hasten\b)", "", part.strip())
            if plain.startswith("hasten "):
                results.append(plain)
    return results


def mistake(line: str) -> str:
    """What the command line would say against it; empty where it would begin to work."""
    words = shlex.split(line, comments=True)
    if "--" in words:  # behind it stands another program
        words = words[: words.index("--")]
    words = [word for word in words[1:] if word != "..."]
    known = made.commands()
    verb = "hasten"
    while words and f"{verb} {words[0]}" in known:
        verb = f"{verb} {words.pop(0)}"
    command = known[verb]
    if verb == "hasten scale":  # `hasten scale SOURCE` is short for `hasten scale run SOURCE`
        verb, command = "hasten scale run", known["hasten scale run"]
    if getattr(command, "commands", None):
        return "" if words in ([], ["--help"], ["--version"]) else f"{verb} has no '{' '.join(words[:1])}'"
    return _wrong_words(command, verb, words)


def _wrong_words(command: Any, verb: str, words: list[str]) -> str:
    settings = [word for word in words if re.match(r"[a-z_]+(\.[a-z_]+)+=", word)]
    try:
        context = command.context_class(command, info_name=verb, **command.context_settings)
        given, _, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.params:
            value = given.get(parameter.name)
            empty = value is None or value == () or "UNSET" in repr(value).upper()
            if parameter.required and empty and verb not in ("hasten doctor",) and "--help" not in words:
                return f"{verb}: {parameter.opts[-1]} is missing"
            if not empty and "Path" not in str(parameter.type_descriptor.annotation):  # a file need not be there
                parameter.process_value(context, value)
        checked = [word for word in settings if not word.startswith(("data.source=", "cache.dir="))]
        load_run(overrides=checked)
    except ValueError as error:
        return str(error)
    except Exception as error:  # a UsageError of click, of which typer carries a copy of its own
        return str(getattr(error, "message", error))
    return ""
