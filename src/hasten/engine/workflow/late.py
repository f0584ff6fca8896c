"""An engine state whose batch and output are decollated on first access by a handler."""

from __future__ import annotations

from typing import Any

from ignite.engine import State

from hasten.engine.workflow.sample import taken_apart

KEEP = object()
"""As the output it keeps the existing output, and does not decollate it."""


class LateState(State):
    """ignite's state. After `take_apart` the next reader of `batch` and `output` gets them as lists of samples."""

    def __init__(self, **values: Any) -> None:
        self._batch = self._output = None
        self._batch_whole = self._output_whole = False
        super().__init__(**values)

    def take_apart(self) -> None:
        """Defer the decollation that MONAI's trainer does on MODEL_COMPLETED."""
        self._batch_whole = isinstance(self._batch, (list, dict))
        self._output_whole = isinstance(self._output, (list, dict))

    @property
    def batch(self) -> Any:
        if self._batch_whole:
            self._batch_whole = False
            self._batch = taken_apart(self._batch)
        return self._batch

    @batch.setter
    def batch(self, value: Any) -> None:
        self._batch, self._batch_whole = value, False

    @property
    def output(self) -> Any:
        if self._output_whole:
            self._output_whole = False
            self._output = taken_apart(self._output)
        return self._output

    @output.setter
    def output(self, value: Any) -> None:
        if value is not KEEP:
            self._output, self._output_whole = value, False
