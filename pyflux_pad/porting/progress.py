"""A progress bar on the error stream, where a person is looking."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TextIO

_WIDTH = 30


class Progress:
    """A bar of `total` steps; silent where the stream is no terminal.

    Parameters
    ----------
    label
        What is going on.
    total
        How many steps there will be.
    stream
        Where to draw; by default the error stream.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self.label, self.total, self.done = label, max(total, 1), 0
        self.stream = sys.stderr if stream is None else stream
        self.shown = self.stream.isatty()

    def __enter__(self) -> Progress:
        self._draw()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown:
            self.stream.write("\r" + " " * (len(self.label) + _WIDTH + 16) + "\r")
            self.stream.flush()

    def step(self) -> None:
        """Go one step on."""
        self.done += 1
        self._draw()

    def _draw(self) -> None:
        if self.shown:
            filled = min(self.done * _WIDTH // self.total, _WIDTH)
            self.stream.write(f"\r{self.label} [{'#' * filled:{_WIDTH}}] {self.done}/{self.total}")
            self.stream.flush()
