"""An HTTP server on the loopback interface that behaves badly where it is told to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: Mapping[str, bytes]
    replies: Mapping[str, Reply]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.replies:
            self.close_connection = True
            self.replies[path](self)
        elif path in self.files:
            self.answer(self.files[path])
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.head(status, **{"Content-Length": str(len(body)), **headers})
        self.body(body)

    def head(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def body(self, data: bytes) -> None:
        if self.command == "GET":
            self.wfile.write(data)
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


def serve(files: Mapping[str, bytes], replies: Mapping[str, Reply] | None = None) -> str:
    """A server in a process of its own, which ends with the trial; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if os.fork():
        listener.close()
        return address
    try:
        handler = type("Bound", (Handler,), {"files": dict(files), "replies": dict(replies or {})})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.serve_forever()
    finally:
        os._exit(0)


def drip(handler: Handler) -> None:
    """A byte a second of a megabyte."""
    handler.head(Content_Length=str(1 << 20))
    for _ in range(600):
        handler.body(b" ")
        time.sleep(1)


def endless(handler: Handler) -> None:
    handler.head(Connection="close")
    for _ in range(1 << 12):
        handler.body(bytes(1 << 20))


def silence(_: Handler) -> None:
    time.sleep(600)


def hang_up(handler: Handler) -> None:
    handler.connection.close()


def raw(data: bytes) -> Reply:
    return lambda handler: handler.wfile.write(data) and None


REPLIES: dict[str, Reply] = {
    **{
        str(code): (lambda handler, code=code: handler.send_error(code)) for code in (401, 403, 404, 410, 429, 500, 503)
    },
    "redirect-to-itself": lambda handler: handler.head(302, Location=handler.path, Content_Length="0"),
    "redirect-to-a-file": lambda handler: handler.head(302, Location="file:///etc/passwd", Content_Length="0"),
    "redirect-to-nowhere": lambda handler: handler.head(302, Location="http://127.0.0.1:1/x", Content_Length="0"),
    "redirect-without-a-place": lambda handler: handler.head(302, Content_Length="0"),
    "web-page": lambda handler: handler.answer(b"<html>sign in</html>", Content_Type="text/html"),
    "nothing": lambda handler: handler.answer(b""),
    "length-too-long": lambda handler: (handler.head(Content_Length="100000"), handler.body(b"[]"))[0],
    "length-too-short": lambda handler: (handler.head(Content_Length="3"), handler.body(b"[1, 2, 3, 4]"))[0],
    "length-negative": lambda handler: (handler.head(Content_Length="-5"), handler.body(b"[]"))[0],
    "length-no-number": lambda handler: (handler.head(Content_Length="much"), handler.body(b"[]"))[0],
    "length-1e15": lambda handler: (handler.head(Content_Length=str(10**15)), handler.body(b"[]"))[0],
    "no-length": lambda handler: (handler.head(Connection="close"), handler.body(b"[]"))[0],
    "drip": drip,
    "endless": endless,
    "silence": silence,
    "hang-up": hang_up,
    "no-http": raw(b"SSH-2.0-OpenSSH_9.0\r\n"),
    "long-header": raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n"),
    "many-headers": raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"),
    "bad-chunks": raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
    "bad-gzip": lambda handler: handler.answer(b"no gzip", Content_Encoding="gzip"),
    "unknown-encoding": lambda handler: handler.answer(b"[]", Content_Encoding="magic"),
    "escape-codes-in-reason": raw(b"HTTP/1.1 403 \x1b[31mgo away\x1b]0;x\x07\r\nContent-Length: 0\r\n\r\n"),
}
