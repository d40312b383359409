"""The data directory of a local server, as files: its way, its lock, its log, its making."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import time
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts import accounts
from shardctl.meter import listed
from shardctl.postgres import pidfile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY = 30.0
"""Seconds to wait for another shardctl that works on the same directory."""

_POLL = 0.05
_INITDB = ("pg_", "PG_VERSION", "base", "global", "postgresql.", "shardctl.")
"""How the names begin that an unfinished data directory holds."""


def directory_not_empty(path: Path, holds: list[str]) -> Refused:
    """Report a directory with contents that are not a server's."""
    return Refused(
        "directory_not_empty",
        f"{path} is not empty and is not a data directory (it has no PG_VERSION): {listed(holds)}",
        hint="move or remove its contents, or give the node another data_directory",
    )


@contextlib.contextmanager
def translated(data_directory: Path) -> Iterator[None]:
    """Turn the system's errors on files into directory_refused."""
    try:
        yield
    except OSError as error:
        path = error.filename if isinstance(error.filename, str) else data_directory
        raise Refused(
            "directory_refused",
            f"{path}: {error.strerror or str(error)}",
            hint="free disk space, correct the permissions, or give the node another "
            "data_directory",
        ) from error


def log(data_directory: Path) -> Path:
    """Name the log, beside the directory."""
    return data_directory.with_name(f"{data_directory.name}.log")


def being_made(data_directory: Path) -> Path:
    """Name the directory in which initdb works, beside the final one."""
    return data_directory.with_name(f"{data_directory.name}.new")


def major(data_directory: Path) -> str | None:
    """Read PG_VERSION; None when there is none."""
    try:
        return (data_directory / "PG_VERSION").read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_way(data_directory: Path, account: str | None) -> None:
    """Raise directory_unreachable or directory_owned where `account` could not serve.

    And folder_unsafe where root, who makes the directory for it, would work among others' files.
    """
    if account is not None:
        accounts.require_roots(data_directory.parent)
    blocked = accounts.blocked_at(data_directory.parent, account)
    if blocked is not None and account is not None:
        raise Refused(
            "directory_unreachable",
            f"{data_directory}: the user {account}, who runs servers for root, cannot "
            f"enter {blocked}",
            hint="set an absolute data_directory elsewhere in the topology, such as "
            f"/var/tmp/shardctl/{data_directory.name}; or " + accounts.way_out(blocked, account),  # noqa: S108  # only a suggestion
        )
    runs_as = os.geteuid() if account is None else pwd.getpwnam(account).pw_uid
    if data_directory.exists() and major(data_directory) is not None:
        owner = data_directory.stat().st_uid
        if owner != runs_as:
            theirs, ours = _user(owner), _user(runs_as)
            raise Refused(
                "directory_owned",
                f"{data_directory} belongs to {theirs}, but the server would run as {ours}",
                hint=f"run shardctl as root with os_user: {theirs} for the node, or run "
                f"chown -R {ours} {data_directory}",
            )


def make_way(data_directory: Path, account: str | None) -> None:
    """Make the parent directories, such that `account` may pass; raises as `check_way`."""
    check_way(data_directory, account)
    if accounts.make_way(data_directory.parent, account) and account is not None:
        accounts.require_roots(data_directory.parent)  # another may have been quicker


@contextlib.contextmanager
def alone(data_directory: Path, account: str | None) -> Iterator[int]:
    """Hold the directory's lock, which is its log file's; give the descriptor that has it.

    A process that inherits the descriptor keeps the lock. Raises directory_busy.
    """
    path = log(data_directory)
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + BUSY
        while not _locked(held):
            if time.monotonic() > deadline:
                raise Refused(
                    "directory_busy",
                    f"another shardctl is using {data_directory}",
                    hint="wait until it ends, then try again",
                )
            time.sleep(_POLL)
        accounts.give(held, account)
        yield held
    finally:
        os.close(held)


@contextlib.contextmanager
def unfinished(data_directory: Path, account: str | None) -> Iterator[Path]:
    """Make an empty directory for initdb; what is left of it on an error is removed."""
    new = being_made(data_directory)
    remove_unfinished(data_directory)
    new.mkdir(mode=0o700)
    accounts.give(new, account)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def remove_unfinished(data_directory: Path) -> None:
    """Remove what a killed initdb left; raises directory_not_empty when it is not initdb's."""
    new = being_made(data_directory)
    if not new.exists():
        return
    names = sorted(entry.name for entry in new.iterdir())
    if strange := [name for name in names if not name.startswith((*_INITDB, pidfile.NAME))]:
        raise directory_not_empty(new, strange)
    shutil.rmtree(new)


def require_empty(data_directory: Path) -> None:
    """Raise directory_not_empty unless the directory is empty or absent."""
    if data_directory.exists():
        holds = sorted(entry.name for entry in data_directory.iterdir())
        if holds:
            raise directory_not_empty(data_directory, holds)


def leave(path: Path, text: str, account: str | None) -> None:
    """Write a small file that belongs to `account`."""
    # The directory is that user's already, who may have put a link there for root to follow.
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        accounts.give(file.fileno(), account)


def size(path: Path) -> int:
    """Give the bytes of a file; 0 when it is missing."""
    return path.stat().st_size if path.exists() else 0


def tail(path: Path, *, since: int, lines: int) -> list[str]:
    """Read the last `lines` of a file, none from before the byte `since`."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(since, size(path) - 65536))
        return file.read().decode(errors="replace").splitlines()[-lines:]


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
