"""Writing files: all of it or nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .graph import ModelError


def write_whole(operation: str, path: str | Path, write: Callable[[Path], object], force: bool) -> None:
    """Let `write` write a file under a temporary name beside its place, then rename it there.

    Raises
    ------
    ModelError
        If there is something at `path` already and `force` is false, or the folder cannot be written to. Nothing has
        been written then.
    """
    place = Path(path)
    refuse_existing(operation, place, force)
    try:
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as folder:
            whole = Path(folder) / place.name
            write(whole)
            whole.replace(place)
    except OSError as error:
        raise ModelError(f"{operation}: {place} cannot be written: {error.strerror or error}") from None


def refuse_existing(operation: str, path: str | Path, force: bool) -> None:
    """Raise ModelError if there is something at `path` and `force` is false."""
    place = Path(path)
    if place.is_dir():
        raise ModelError(f"{operation}: {place} is a folder; name a file in it")
    if place.exists() and not force:
        raise ModelError(f"{operation}: {place} exists and is not overwritten; force it, or write elsewhere")


def write_whole_folder(
    operation: str, path: str | Path, write: Callable[[Path], object], force: bool, files: Sequence[str]
) -> None:
    """Let `write` fill a folder under a temporary name beside its place, then rename it there.

    Raises
    ------
    ModelError
        As `refuse_existing_folder` does, or if the folder cannot be written to. Nothing has changed then.
    """
    place = Path(path)
    refuse_existing_folder(operation, place, force, files)
    try:
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as temporary:
            whole, old = Path(temporary) / "new", Path(temporary) / "old"
            whole.mkdir()
            write(whole)
            if place.exists():
                place.rename(old)
            try:
                whole.rename(place)
            except OSError:
                if old.exists():
                    old.rename(place)
                raise
    except OSError as error:
        raise ModelError(f"{operation}: {place} cannot be written: {error.strerror or error}") from None


def refuse_existing_folder(operation: str, path: str | Path, force: bool, files: Sequence[str]) -> None:
    """Raise ModelError if there is something at `path` and `force` is false, or it is no folder of `files` alone."""
    place = Path(path)
    if not place.exists():
        return
    if not place.is_dir():
        raise ModelError(f"{operation}: {place} is a file; name a folder")
    if not force:
        raise ModelError(f"{operation}: {place} exists and is not overwritten; force it, or write elsewhere")
    foreign = sorted({entry.name for entry in place.iterdir()} - set(files))
    if foreign:
        raise ModelError(
            f"{operation}: {place} has files that {operation} did not write and would delete "
            f"({', '.join(foreign[:5])}); move them, or write elsewhere"
        )
