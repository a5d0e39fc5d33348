"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table: columns two spaces apart, a rule under the headers."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    for line in (headers, ["-" * width for width in widths], *cells):
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def shortened(name: str, width: int = 48) -> str:
    """Return the end of a long name, which tells it from its neighbours; exporters write names of 150 letters."""
    return name if len(name) <= width else f"...{name[3 - width :]}"
