"""The directory of a test fleet, and the sweeping of those whose sessions were killed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

PREFIX = "shardctl-fleet-"
_FAR = Path("/var/tmp")  # noqa: S108  # every user may enter; the directory's name is random
_ALIVE = ".alive"
"""The file that a running session holds locked."""


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """Make a directory that the servers' user may enter; it is removed at the end.

    Raises account_refused where nobody could run servers.
    """
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_base()))
    path.chmod(0o755)
    held = os.open(path / "locking", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        # Under its name once it is locked: what sweeps must not find it free.
        fcntl.flock(held, fcntl.LOCK_EX)
        (path / "locking").rename(path / _ALIVE)
        try:
            yield path
        finally:
            shutil.rmtree(path)
    finally:
        os.close(held)


def sweep(end: Callable[[Path], None]) -> None:
    """Remove the directories of killed sessions; `end` stops what runs in one.

    Only one's own are looked at: what is in others' is theirs to say.
    """
    for base in {Path(tempfile.gettempdir()), _FAR}:
        for left in base.glob(f"{PREFIX}*"):
            with _taken(left) as abandoned:
                if abandoned:
                    try:
                        end(left)
                    except (ShardctlError, OSError) as error:
                        # It is no reason for this session not to begin.
                        logger.warning("%s is left of a killed session: %s", left, error)
                        continue
                    # Another session may have been quicker with the same one.
                    shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _taken(left: Path) -> Iterator[bool]:
    """Tell whether a directory is one's own and its session gone, which holds until the end."""
    try:
        status = left.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            yield False
            return
        held = os.open(left / _ALIVE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # it is being made, or has just gone
        yield False
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(held)


def _base() -> Path:
    """Choose where: the system's place for temporary files, unless servers may not go there."""
    usual = Path(tempfile.gettempdir())
    account = accounts.server_account(None)
    return _FAR if accounts.blocked_at(usual, account) is not None else usual
