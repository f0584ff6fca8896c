"""Servers on loopback that do what servers on the internet do: fail, stall, end early, change their files."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Served:
    """What a server has and how it misbehaves; tests change it while it runs."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Content by path, such as /set/dataset.json."""
    fail: int = 0
    """So many requests are answered with `fail_status`, counted down."""
    fail_status: int = 500
    stall: int = 0
    """So many downloads send half of what is asked for and then nothing, counted down."""
    truncate: int = 0
    """So many downloads send half of what they announce and then close, counted down."""
    ranges: bool = True
    length: bool = True
    """Whether the size is announced."""
    validator: str = "etag"
    """`etag`, `weak`, `modified`, or empty for none."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path with query, Range header) of every request."""
    sent: int = 0
    """Bytes of bodies of GET."""
    port: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def downloads(self) -> list[str]:
        """The paths of all GET requests."""
        return [path for method, path, _ in self.requests if method == "GET"]

    def takes(self, name: str) -> bool:
        """Whether one of the counted faults is due now."""
        with self.lock:
            left = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return bool(left)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        served = self.served
        path = unquote(urlsplit(self.path).path)
        asked = self.headers.get("Range", "")
        with served.lock:
            served.requests.append((self.command, self.path, asked))
        if served.takes("fail"):
            return self._short(served.fail_status, b"<Error><Code>InternalError</Code></Error>")
        content = served.files.get(path)
        if content is None:
            return self._short(404, b"<Error><Code>NoSuchKey</Code></Error>")
        start, end, status = 0, len(content), 200
        result = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        if result and served.ranges and self._is_same(content):
            start, status = int(result[1]), 206
            end = min(int(result[2]) + 1, end) if result[2] else end
            if start >= len(content):
                return self._short(416, b"")
        self._send(content, start, end, status, body)
        return None

    def _send(self, content: bytes, start: int, end: int, status: int, body: bool) -> None:
        served, part = self.served, content[start:end]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        name, value = self._validator(content)
        if name:
            self.send_header(name, value)
        if name == "ETag":
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if not served.ranges:
            self.send_header("Accept-Ranges", "none")
        if served.length:
            self.send_header("Content-Length", str(len(part)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if not body:
            return
        whole = part
        stalls = served.takes("stall")
        truncated = not stalls and served.takes("truncate")
        if stalls or truncated:
            part = whole[: len(whole) // 2]
            self.close_connection = True
        with served.lock:
            served.sent += len(part)
        try:
            self.wfile.write(part)
            self.wfile.flush()
            if stalls:
                served.ended.wait(30)
        except OSError:
            pass  # the client has had enough

    def _validator(self, content: bytes) -> tuple[str, str]:
        tag = hashlib.md5(content).hexdigest()
        match self.served.validator:
            case "etag":
                return "ETag", f'"{tag}"'
            case "weak":
                return "ETag", f'W/"{tag}"'
            case "modified":
                return "Last-Modified", f"Mon, 01 Jan 2024 00:00:{int(tag, 16) % 60:02} GMT"
        return "", ""

    def _is_same(self, content: bytes) -> bool:
        """Whether a range may be sent: no If-Range is given, or the strong validator of the content."""
        given = self.headers.get("If-Range")
        return given is None or (given == self._validator(content)[1] and not given.startswith("W/"))

    def _short(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are a part of the tests."""


@contextmanager
def serving(files: dict[str, bytes] | None = None) -> Iterator[Served]:
    """A server on loopback until the block ends. Its paths are /FILE, or for S3 /BUCKET/KEY."""
    served = Served(files=dict(files or {}))
    handler = type("Handler", (_Handler,), {"served": served})
    server = _Quiet(("127.0.0.1", 0), handler)
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """A port of loopback where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
