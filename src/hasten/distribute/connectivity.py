"""Checks that an address can be reached, with clear reasons if not, and calls with a time limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_AGAIN_S = 0.2
_TRY_S = 5.0


def why_unreachable(host: str, port: int, *, within_s: float, hopeless_s: float) -> str | None:
    """None once a process listens at host:port; else, after `within_s` seconds, the reason.

    A host that does not exist or has no route is given up after `hopeless_s`; if no process listens there yet, it is
    retried, as the process may start later.
    """
    begin = time.monotonic()
    while True:
        remaining_s = begin + within_s - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(_TRY_S, remaining_s))).close()
            return None
        except ConnectionRefusedError:
            reason, waits_s = "nobody listens there", within_s
        except TimeoutError:
            reason, waits_s = "no answer", within_s
        except socket.gaierror as error:
            reason, waits_s = f"no host of that name: {error.strerror}", hopeless_s
        except OSError as error:
            reason, waits_s = error.strerror or str(error), hopeless_s
        if time.monotonic() - begin + _AGAIN_S >= min(waits_s, within_s):
            return reason
        time.sleep(_AGAIN_S)


def in_time(call: Callable[[], T], seconds: float) -> T:
    """Return or raise what `call` does; TimeoutError after `seconds`, while it goes on in a daemon thread.

    For calls without a timeout, such as torch's stores if the program at the address is not a store.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return results[0]
