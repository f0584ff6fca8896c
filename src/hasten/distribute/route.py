"""Reaching a meeting point: what is wrong in plain words, and no wait without an end."""

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
    """None once somebody listens at host:port; else, after `within_s` seconds, why not.

    An address that is none, or that no network leads to, is given up after `hopeless_s`; one where nobody listens yet
    is waited for, as its process may start later.
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
    """What `call` gives or raises; TimeoutError after `seconds`, while it goes on in a thread that no exit waits for.

    For calls that have no limit of their own, such as torch's stores towards a program that is none.
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
