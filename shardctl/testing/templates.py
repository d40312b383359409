"""Keeps the data of test fleets that were just made, so that the next ones start from a copy.

Each is one file of tar, in a directory of the user's own: it is there whole or not at all,
whatever removes old files of a temporary directory, and who reads it needs no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.postgres import binaries
from shardctl.state import migrations
from shardctl.testing import derive, directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.topology.model import Topology

PREFIX = "shardctl-templates-"
KEPT = 3
"""How many files a user keeps; those used last stay."""
_NEW = ".new"


def name(application: Topology, *, shards: int, nodes: int) -> str:
    """Return the name of what a fleet starts from: a digest of all that it is made of.

    That is the topology, the migrations, PostgreSQL's programs, the user who runs them, and
    shardctl itself. Raises what reading the migrations and finding the programs raises.
    """
    account = accounts.server_account(None)
    found = binaries.find(None, account=account)
    server = Path(found.program("postgres")).stat()
    ports = range(1, nodes + 1)
    anywhere = replace(application, database=replace(application.database, migrations=None))
    made_of = [
        derive.render(anywhere, directory=Path("/"), shards=shards, ports=ports),
        *((one.name, one.checksum) for one in migrations.read(application.database.migrations)),
        (str(found.directory), server.st_size, server.st_mtime_ns, account),
        *_package(),
    ]
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]


def unpack(called: str, into: Path, make: Callable[[Path], None]) -> None:
    """Unpack the files of that name into a directory; where there are none, `make` packs them.

    Another process that wants the same at this moment waits for the first. Raises
    templates_refused, CommandFailed (no space left), and what `make` raises.
    """
    folder = _folder()
    file = folder / f"{called}.tar"
    if _unpacked(file, into):
        return
    with _alone(folder):
        if _unpacked(file, into):
            return
        for left in folder.glob(f"*{_NEW}"):  # of a killed process: this one has the lock
            left.unlink()
        new = folder / f"{called}{_NEW}"
        try:
            make(new)
            new.rename(file)
        finally:
            new.unlink(missing_ok=True)
        _forget(folder)
        _unpacked(file, into)


def pack(place: Path, names: Sequence[str], to: Path) -> None:
    """Pack these files and directories of stopped servers into a file; raises CommandFailed."""
    Local().run(["tar", "--sparse", "-cf", str(to), "-C", str(place), *names])
    with to.open("rb") as file:
        os.fsync(file)


def _unpacked(file: Path, into: Path) -> bool:
    """Unpack a file, unless it is missing; it may be removed meanwhile."""
    try:
        held = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        Local().run(["tar", "-xpf", f"/dev/fd/{held}", "-C", str(into)], keep_open=(held,))
        os.utime(held)
    finally:
        os.close(held)
    return True


def _forget(folder: Path) -> None:
    """Remove the files that were not used for longest."""
    by_use = sorted(folder.glob("*.tar"), key=lambda file: -file.stat().st_mtime)
    for old in by_use[KEPT:]:
        old.unlink()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        # A child that was forked meanwhile has the same lock, and keeps it open.
        fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)


def _folder() -> Path:
    """Make or find the directory of this user's files; raises templates_refused."""
    path = directory.base() / f"{PREFIX}{os.geteuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    private = not stat.S_IMODE(found.st_mode) & 0o077
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not private:
        raise Refused(
            "templates_refused",
            f"{path} is not a directory that only this user can read and write",
            hint="remove it, or set $TMPDIR to another directory",
        )
    return path


def _package() -> Iterator[tuple[str, int, int]]:
    """List shardctl's own files, with size and time of change."""
    with resources.as_file(resources.files("shardctl")) as package:
        for file in sorted(package.rglob("*")):
            if file.suffix in {".py", ".sql", ".j2", ".sh"}:
                found = file.stat()
                yield str(file.relative_to(package)), found.st_size, found.st_mtime_ns
