"""Replace a file of this machine at once: a reader sees the old text or the new one, whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, text: str, *, mode: int) -> None:
    """Write a file beside `path`, sync it, and let it take that place; raises OSError.

    Each call has an unfinished file of its own, hidden and with another ending, so that calls at
    the same time do not meet. An error leaves the file before as it was.
    """
    number, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".new", dir=path.parent)
    unfinished = Path(name)
    try:
        with open(number, "w", encoding="utf-8") as file:  # noqa: PTH123  # a number, not a path
            os.fchmod(number, mode)
            file.write(text)
            file.flush()
            os.fsync(number)
        unfinished.replace(path)
    except BaseException:  # Ctrl-C, too
        unfinished.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Let the new name outlast a crash of the machine."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
