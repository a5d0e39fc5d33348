"""What people see: tables, a progress bar, a line while something takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table: columns two spaces apart, a rule under the headers."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    for line in (headers, ["-" * width for width in widths], *cells):
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def shortened(name: str, width: int = 48) -> str:
    """Return the end of a long name, which tells it from its neighbours; exporters write names of 150 letters."""
    return name if len(name) <= width else f"...{name[3 - width :]}"


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


@contextmanager
def notice(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show a line on the error stream while something goes on; silent where the stream is no terminal."""
    shown = sys.stderr if stream is None else stream
    if not shown.isatty():
        yield
        return
    shown.write(text)
    shown.flush()
    try:
        yield
    finally:
        shown.write("\r" + " " * len(text) + "\r")
        shown.flush()
