"""What can be wrong with one local server, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.postgres import binaries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.postgres.binaries import Binaries


def _with_log(sentence: str, lines: Sequence[str]) -> str:
    return "\n  ".join([sentence, *lines])


def server_did_not_start(name: str, log: Path, lines: Sequence[str]) -> Refused:
    """Report a server that ended instead of coming up; `lines` are its last words in this start."""
    return Refused(
        "server_did_not_start",
        _with_log(f"node {name}: the server did not start; its log ends with:", lines),
        hint=f"fix the cause, then start it again; the whole log: {log}",
    )


def server_not_ready(name: str, log: Path, lines: Sequence[str]) -> Refused:
    """Report a server that runs and does not take connections yet, or does not end."""
    return Refused(
        "server_not_ready",
        _with_log(
            f"node {name}: the server is running, but was not ready in time; its log:", lines
        ),
        hint=f"a recovery can take long: watch {log}, then try again",
    )


def server_did_not_stop(name: str, log: Path, lines: Sequence[str]) -> Refused:
    """Report a server that still runs after pg_ctl stop."""
    return Refused(
        "server_did_not_stop",
        _with_log(f"node {name}: the server did not stop; pg_ctl printed:", lines),
        hint=f"try again when the cause is gone; the whole log: {log}",
    )


def server_orphans(name: str, data_directory: Path, pids: list[int]) -> Refused:
    """Report processes of a killed server that still use its data directory."""
    listed = " ".join(map(str, pids))
    return Refused(
        "server_orphans",
        f"node {name}: the server has stopped, but its processes still use "
        f"{data_directory}: {listed}",
        hint=f"they usually end within seconds; if not: kill {listed}",
    )


def wrong_major(name: str, data_directory: Path, found: str | None, programs: Binaries) -> Refused:
    """Report a data directory of another major version than the programs."""
    fitting = binaries.of_major(int(found)) if found is not None and found.isdecimal() else None
    return Refused(
        "wrong_major",
        f"node {name}: {data_directory} was created by PostgreSQL "
        f"{found or '(PG_VERSION is missing)'}; {programs.directory} has "
        f"{programs.major}",
        hint=f"set bin_directory of node {name}: {fitting.directory}"
        if fitting
        else (
            f"install PostgreSQL {found} and set it as bin_directory of node {name}, or "
            "remove the directory"
        ),
    )
