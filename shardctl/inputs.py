"""Files that an operator names, read whole: never more of one than fits what it is for."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_SQL = 16 << 20
"""Bytes of the largest file of SQL that is read: a migration, or what `sql --file` names."""


def read(path: Path, most: int) -> bytes:
    """Give the content of a regular file of at most `most` bytes.

    Raises OSError, whose `strerror` also names another kind of file, or too large a one.
    """
    with open(path, "rb", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return whole(file, most)


def whole(file: IO[bytes], most: int) -> bytes:
    """Give what is left in a file or pipe; raises OSError for more than `most` bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
    return content


def trusted() -> set[int]:
    """Give the users whose files may decide what this process does: root, itself, sudo's caller."""
    mine = os.geteuid()
    caller = os.environ.get("SUDO_UID", "") if mine == 0 else ""
    return {0, mine, *([int(caller)] if caller.isdecimal() else [])}


def others_may_write(mode: int, owner: str, group: str) -> bool:
    """Return whether a mode lets others than the owner write.

    A group with the owner's own name is the owner's: Debian's and Red Hat's users have such groups,
    and the umask 002.
    """
    return bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and group != owner))


def _open(path: str, flags: int) -> int:
    """Open a file without waiting: a FIFO to which no program writes would never open."""
    return os.open(path, flags | os.O_NONBLOCK)
