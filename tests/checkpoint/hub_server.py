"""A stand-in for Hugging Face's hub on this machine: one repository, listed and downloaded as from the real one."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = "lab/net"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.requests: list[str] = []
        self.url = ""

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers. Files of weights are stored as the hub stores large ones, by their SHA-256."""
        self.requests.append(path)
        if re.match(rf"/api/models/{REPOSITORY}/tree/(main|{COMMIT})", path):
            return 200, json.dumps([self._entry(name) for name in self.files]).encode(), {}
        if re.match(rf"/api/models/{REPOSITORY}(/revision/(main|v1|{COMMIT}))?(\?|$)", path):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.files.items()]
            info = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": siblings, "tags": []}
            return 200, json.dumps(info).encode(), {}
        file = re.fullmatch(rf"/{REPOSITORY}/resolve/{COMMIT}/([^?]+)", path)
        if file and file[1] in self.files:
            data = self.files[file[1]]
            etag = self._entry(file[1]).get("lfs", {}).get("oid") or self._entry(file[1])["oid"]
            return 200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        code = (
            "RepoNotFound" if REPOSITORY not in path else "RevisionNotFound" if "revision" in path else "EntryNotFound"
        )
        return 404, b"", {"X-Error-Code": code}

    def _entry(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        entry = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        if name.endswith((".safetensors", ".pt", ".bin")):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry


@contextmanager
def serving(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub at a port of this machine, for huggingface_hub in this process, whose cache is this folder."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, headers = hub.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    use_hub(hub.url, cache, monkeypatch)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub ask this URL; it reads its variables of the environment but once."""
    from huggingface_hub import constants

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
