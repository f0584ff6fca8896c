"""A headless Chromium that is asked over a pipe, without a port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads from 3 and writes to 4."""


class Browser:
    """One page of a browser."""

    def __init__(self, to: Any, back: Any) -> None:
        self.to, self.back, self.number, self.session = to, back, 0, None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The browser's answer to a command of its DevTools protocol."""
        self.number += 1
        session = {"sessionId": self.session} if self.session else {}
        self.to.write(json.dumps({"id": self.number, "method": method, "params": params, **session}).encode() + b"\0")
        self.to.flush()
        while True:
            text = bytearray()
            while (byte := self.back.read(1)) != b"\0":
                assert byte, "the browser has ended"
                text += byte
            message = json.loads(text)
            if message.get("id") == self.number:
                assert "error" not in message, message
                return dict(message["result"])

    def open(self, page: Path, *, width: int = 1300) -> None:
        """Load the page, and wait until it says that it is ready."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=page.as_uri())
        self.value(
            "new Promise(done => setInterval(() => document.documentElement.dataset.ready && done(), 20))", wait=True
        )

    def value(self, expression: str, *, wait: bool = False) -> Any:
        """What an expression of JavaScript gives on the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=wait)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=name)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser; profile: an empty folder of its own."""
    assert CHROMIUM is not None
    (commands, to), (back, answers) = os.pipe(), os.pipe()
    command = [
        sys.executable, "-c", _START, str(commands), str(answers), CHROMIUM, "--headless", "--no-sandbox",
        "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--remote-debugging-pipe", f"--user-data-dir={profile}",
    ]  # fmt: skip
    process = subprocess.Popen(command, pass_fds=(commands, answers), stderr=subprocess.DEVNULL)
    os.close(commands)
    os.close(answers)
    try:
        with os.fdopen(to, "wb") as writing, os.fdopen(back, "rb") as reading:
            yield Browser(writing, reading)
    finally:
        process.terminate()
        process.wait(30)
