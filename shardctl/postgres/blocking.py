"""Which sessions of a server wait for a lock, and who holds it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardctl.postgres import queries
from shardctl.postgres.masking import without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import psycopg

Modes = tuple[str, ...]

READERS: Modes = ("AccessShareLock", "RowShareLock")
"""Locks that queries take."""
CLIENTS: Modes = (*READERS, "RowExclusiveLock")
"""Locks that queries and writes take."""

_SHOWN = 80
"""Characters of a holder's statement that are shown."""
_TEMPORARY = re.compile(r"\bpg_temp_([0-9]{1,7})(?=\.)")
QUERIES = queries.load("shardctl.postgres", "blocking.sql")


def holders(session: psycopg.Connection[Any], pids: Sequence[int]) -> list[tuple[int, str]]:
    """Give those of some sessions that wait for a lock, each with a text of who holds it."""
    found = session.execute(QUERIES["blockers"], {"ours": list(pids)})
    return [(waiting, _holder(*holder)) for waiting, *holder in found]


def holding(session: psycopg.Connection[Any], schemas: Sequence[str], *, but: Modes) -> list[str]:
    """Name those who hold or want tables of these schemas, but in some modes, the oldest first.

    Each is named with one lock.
    """
    rows = session.execute(QUERIES["holding"], {"schemas": list(schemas), "but": list(but)})
    return [
        (f"a prepared transaction ({who})" if pid is None else f"pid {pid} ({who})")
        + f" {'holds' if granted else 'waits for'} {mode} on {what}"
        for pid, who, granted, mode, what in rows
    ]


def with_session(session: psycopg.Connection[Any], described: str) -> str:
    """Add to the description of a temporary object the session whose it is.

    Servers before 16 tell only which sessions may be that.
    """
    if (schema := _TEMPORARY.search(described)) is None:
        return described
    (found,) = queries.one(session, QUERIES["temporary"], {"number": int(schema[1])})
    left = f"left by a session that crashed: DROP SCHEMA {schema[0]} CASCADE"
    return f"{described} [temporary, {found or left}]"


def _holder(
    pid: int,
    user: str | None,
    application: str | None,
    since: datetime | None,
    statement: str | None,
) -> str:
    """Name the session that holds a lock; process 0 is that of prepared transactions."""
    if pid == 0:
        return "a prepared transaction (see pg_prepared_xacts)"
    text = " ".join(without_passwords(statement or "").split())
    shown = f": {text[:_SHOWN]}{'...' if text[_SHOWN:] else ''}" if text else ""
    began = f", query begun {since:%Y-%m-%d %H:%M:%S %Z}{shown}" if since else ""
    named = f", application {application}" if application else ""
    return f"session {pid} (user {user or '-'}{named}{began})"
