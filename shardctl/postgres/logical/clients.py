"""pg_dump, pg_restore and psql of this machine, in a version that can read a server."""

from __future__ import annotations

import functools
import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.postgres import embedded
from shardctl.postgres.binaries import SYSTEM, VARIABLE, Binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = ("pg_dump", "pg_restore", "psql")
"""What a directory must hold; an installation without a server does."""

_NAMED = f"{', '.join(PROGRAMS[:-1])} and {PROGRAMS[-1]}"
_SECONDS = 30.0


def find(major: int) -> Binaries:
    """Find the oldest programs of version `major` or newer; raises no_pg_dump.

    `$SHARDCTL_PG_BIN` goes before the system's directories and PATH. The embedded ones, which know
    no TLS, come last, whatever their version.
    """
    found = [Binaries(one, version) for one in _directories() if (version := _version(one))]
    fit = [one for one in found if one.major >= major]
    if not fit:
        seen = ", ".join(f"{one.directory} has {one.major}" for one in found)
        raise Refused(
            "no_pg_dump",
            f"{_NAMED} of PostgreSQL {major} or newer are not installed here"
            + (f" ({seen})" if seen else ""),
            hint=f"install postgresql-client-{major} (Debian) or postgresql{major} (Red Hat), or "
            f"name a directory with {_NAMED} in ${VARIABLE}",
        )
    return min(fit, key=lambda one: (embedded.holds(one.directory), one.major))


def _directories() -> Iterator[Path]:
    """Give the directories that have all programs, each once."""
    named = os.environ.get(VARIABLE)
    listed = [
        *([named] if named else []),
        *(one for pattern in SYSTEM for one in sorted(glob.glob(pattern))),  # noqa: PTH207
        *os.get_exec_path(),
        *map(str, embedded.directories()),
    ]
    seen = set()
    for directory in map(Path, listed):
        program = (directory / PROGRAMS[0]).resolve()
        if program not in seen and all(os.access(directory / one, os.X_OK) for one in PROGRAMS):
            seen.add(program)
            yield directory


@functools.cache
def _version(directory: Path) -> int | None:
    """Ask pg_dump for its major version; None where it does not run."""
    try:
        said = Local().run([str(directory / PROGRAMS[0]), "--version"], timeout=_SECONDS).stdout
    except CommandFailed:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", said)
    return int(match[1]) if match else None
