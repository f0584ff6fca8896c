"""Stop requests by Ctrl-C, SIGTERM or SIGUSR1: handled at a step boundary, by all ranks at the same step."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, distributed

_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGUSR1": 75}
EXIT_CODES = {signal.Signals[name]: code for name, code in _CODES.items() if hasattr(signal, name)}
"""Exit codes by the signals that this system has. 75 is EX_TEMPFAIL of sysexits.h, "try again later": the state is
saved and the job wants to be queued again."""
_ORDER = tuple(EXIT_CODES)
"""The later one counts where ranks were sent several: a wish to be queued again must not get lost."""


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, has saved its state and ends; `exit_code` is the process's."""

    def __init__(self, message: str, number: signal.Signals) -> None:
        super().__init__(message)
        self.signal = number
        self.exit_code = EXIT_CODES[number]


class StopRequest:
    """Context around the loop that handles the signals. `agreed()` after each step says whether to save and end.

    A first Ctrl-C takes effect at the step boundary, a second one ends at once. SIGTERM and SIGUSR1 wait for the
    boundary, however often they come. On exit the earlier handlers are restored. Only a process's main thread receives
    signals; in another one, `ask` and other ranks still count. A process forked meanwhile has the earlier handlers.

    With torch.distributed every rank enters, and calls `agreed` equally often. On every call of that number (`every`)
    the ranks exchange their signals, over a separate group in host memory, and each reads the result `every` calls
    later, when it has long arrived: no step waits for it, no GPU takes part, and all act at the same step, at most
    2 * every - 1 steps after the one in which the signal came.
    """

    def __init__(self, *, every: int = 1, timeout_s: float | None = None) -> None:
        """timeout_s: seconds that a rank waits for the others before it fails; None is torch's default."""
        assert every >= 1
        self.every = every
        self.timeout = timedelta(seconds=timeout_s) if timeout_s is not None else None
        self.asked: signal.Signals | None = None
        """What this process was sent; other ranks may not know of it yet."""
        self._before: dict[signal.Signals, Any] = {}
        self._process = os.getpid()
        self._group: distributed.ProcessGroup | None = None
        self._calls = 0
        self._notes: tuple[distributed.Work, Tensor] | None = None

    def ask(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Request a stop as if the signal had come, for example for a time limit."""
        if self.asked is None or _ORDER.index(number) > _ORDER.index(self.asked):
            self.asked = number

    def agreed(self) -> signal.Signals | None:
        """The signal on which all ranks stop at this step boundary, or None to continue."""
        if self._group is None:
            return self.asked
        self._calls += 1
        if self._calls % self.every:
            return None
        agreed = self._agreed_signal()
        rank_value = _ORDER.index(self.asked) + 1 if self.asked is not None else 0
        note = torch.tensor(rank_value, dtype=torch.int32)
        work = distributed.all_reduce(note, distributed.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._notes = (work, note)
        return agreed

    def _agreed_signal(self) -> signal.Signals | None:
        if self._notes is None:
            return None
        work, note = self._notes
        self._notes = None
        work.wait()
        # In host memory, where reading a value costs nothing.
        number = int(note)
        return _ORDER[number - 1] if number else None

    def __enter__(self) -> StopRequest:
        self.asked, self._calls, self._notes, self._process = None, 0, None, os.getpid()
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            self._group = distributed.new_group(backend="gloo", timeout=self.timeout)
        if threading.current_thread() is threading.main_thread():
            for number in _ORDER:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, _usable(handler))
        self._before = {}
        group, self._group = self._group, None
        if group is not None and os.getpid() == self._process:
            if error is None:
                self._agreed_signal()  # every rank made as many reductions: none is pending
            distributed.destroy_process_group(group)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A worker that was forked meanwhile: it must end as it would have without us.
            for each, handler in self._before.items():
                signal.signal(each, _usable(handler))
            os.kill(os.getpid(), number)
            return
        self.ask(signal.Signals(number))
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _usable(handler: Any) -> Any:
    """A handler that was not set from Python reads as None and cannot be put back."""
    return signal.SIG_DFL if handler is None else handler
