"""Checks that an address can be reached, with clear reasons if not, and calls with a time limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

_AGAIN_S = 0.2
_TRY_S = 5.0
_HOPELESS_S = 30.0
"""How long an address that does not exist is tried: a cluster's names may come a little after its processes."""


def why_unreachable(host: str, port: int, *, within_s: float) -> str | None:
    """None once a process listens at host:port; else, after `within_s` seconds, the reason.

    A host that does not exist or has no route is given up sooner; if no process listens there yet, it is retried, as
    the process may start later.
    """
    begin = time.monotonic()
    while True:
        remaining_s, waits_s = begin + within_s - time.monotonic(), within_s
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(_TRY_S, remaining_s))).close()
            return None
        except ConnectionRefusedError:
            reason = "nobody listens there"
        except TimeoutError:
            reason = "no answer"
        except OSError as error:
            reason, waits_s = error.strerror or str(error), min(within_s, _HOPELESS_S)
            if isinstance(error, socket.gaierror):
                reason = f"no host of that name: {error.strerror}"
        if time.monotonic() - begin + _AGAIN_S >= waits_s:
            return reason
        time.sleep(_AGAIN_S)


def with_timeout(call: Callable[[], T], seconds: float) -> T:
    """Return or raise what `call` does; TimeoutError after `seconds`, while it goes on in a daemon thread.

    For calls without a timeout, such as torch's stores if the program at the address is not a store.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return future.result()
