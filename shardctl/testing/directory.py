"""The directory of a test fleet, those of killed sessions, and an environment without libpq's."""

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

from psycopg import pq

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
    """Create a directory that the servers' user may enter, and remove it at the end.

    Raises account_refused where no user can run servers.
    """
    owner = os.getpid()
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base()))
    path.chmod(0o755)
    (path / "locking").touch()
    with locked(path / "locking"):
        # Rename it only once it is locked: `sweep` must not find it unlocked.
        (path / "locking").rename(path / _ALIVE)
        try:
            yield path
        finally:
            if os.getpid() == owner:  # a child that was forked leaves it alone
                shutil.rmtree(path)


@contextlib.contextmanager
def locked(file: Path, how: int = 0) -> Iterator[None]:
    """Hold the lock of a file that exists; raises BlockingIOError if `how` is LOCK_NB."""
    owner = os.getpid()
    held = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | how)
        yield
    finally:
        if os.getpid() == owner:  # a child that was forked has the same lock, and keeps it open
            fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)


def sweep(end: Callable[[Path], None]) -> None:
    """Remove the directories of killed sessions; `end` stops the servers in one.

    Checks only directories of the same user.
    """
    for base in {Path(tempfile.gettempdir()), _FAR}:
        for left in base.glob(f"{PREFIX}*"):
            # Its session may be alive, or just creating or removing it, or another user's.
            free = contextlib.suppress(BlockingIOError, FileNotFoundError, PermissionError)
            with free, locked(left / _ALIVE, fcntl.LOCK_NB):
                status = left.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    continue
                try:
                    end(left)
                except (ShardctlError, OSError) as error:
                    # This must not keep the new session from starting.
                    logger.warning("leftover of a killed session: %s: %s", left, error)
                    continue
                # Another session may have removed the same directory first.
                shutil.rmtree(left, ignore_errors=True)


def base() -> Path:
    """Return the system's directory for temporary files, or /var/tmp if servers cannot enter it."""
    usual = Path(tempfile.gettempdir())
    account = accounts.server_account(None)
    return _FAR if accounts.blocked_at(usual, account) is not None else usual


_OTHERS = ("PGSERVICEFILE", "PGSYSCONFDIR", "PGREQUIRESSL", "PGDATESTYLE", "PGTZ", "PGGEQO")
"""Variables that libpq reads and that have no keyword in a connection string."""


@contextlib.contextmanager
def without_libpq() -> Iterator[None]:
    """Remove libpq's variables from this process's environment during a block.

    They are for other servers: some name those (PGHOSTADDR, PGSERVICE), some require what a test
    fleet lacks (PGSSLMODE), some change a session's behaviour (PGOPTIONS).
    """
    keywords = (option.envvar for option in pq.Conninfo.get_defaults() if option.envvar)
    names = (*map(os.fsdecode, keywords), *_OTHERS)
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)
