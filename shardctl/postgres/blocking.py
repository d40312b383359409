"""Who is in the way: sessions that hold a lock or that others wait for, and event triggers.

What a move does is tried where event triggers fire, as in a change freeze: on objects of its own,
in a transaction that is rolled back.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from shardctl.postgres import queries
from shardctl.postgres.split import without_passwords

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from psycopg import sql

Modes = tuple[str, ...]

READERS: Modes = ("AccessShareLock", "RowShareLock")
"""Locks that queries take."""
CLIENTS: Modes = (*READERS, "RowExclusiveLock")
"""Locks that queries and writes take."""

_SHOWN = 80
"""Characters of a statement that are shown."""
QUERIES = queries.load("shardctl.postgres", "blocking.sql")


@dataclass(frozen=True, slots=True)
class Holder:
    """A session, with what it runs at this moment, or a prepared transaction.

    `pid` is 0 for the latter, whose `application` is its name.
    """

    pid: int
    user: str | None
    application: str | None
    state: str | None = field(compare=False)
    since: datetime | None
    """When its transaction began."""
    statement: str | None = field(compare=False)

    def __str__(self) -> str:
        since = f"open since {self.since:%Y-%m-%d %H:%M:%S %Z}" if self.since else None
        if self.pid == 0:
            return f"prepared transaction {self.application}, {since}"
        user = self.user and f"user {self.user}"
        application = self.application and f"application {self.application}"
        shown = without_passwords(self.statement or "")
        text = textwrap.shorten(shown, _SHOWN, placeholder="...")
        runs = f": {text}" if text else ""
        named = ", ".join(filter(None, (user, application, self.state, since)))
        # A role without rights for it sees no more than the pid of some.
        return f"session {self.pid} ({named}{runs})" if named else f"session {self.pid}"


class Held(NamedTuple):
    """A lock that is held or waited for: of a relation, or of a schema, which has no OID here.

    `yields_ms` is in what time it gives way to a session that waits, as most autovacuums do.
    """

    schema: str
    oid: int | None
    granted: bool
    mode: str
    what: str
    yields_ms: int | None
    by: Holder

    def __str__(self) -> str:
        return f"{self.by} {'holds' if self.granted else 'waits for'} {self.mode} on {self.what}"


def holders(session: psycopg.Connection[Any], pids: Sequence[int]) -> list[tuple[int, Holder]]:
    """Give those of some sessions that wait for a lock, each with its holders, oldest first."""
    asked = QUERIES["blockers"].format(who=QUERIES["who"])
    found = session.execute(asked, {"ours": list(pids)})
    return [(waiting, Holder(*holder)) for waiting, *holder in found]


def held(
    session: psycopg.Connection[Any],
    schemas: Collection[str],
    *,
    but: Modes = (),
    tables: Sequence[int] | None = None,
) -> list[Held]:
    """List the locks of others there, but in some modes, the oldest transactions' first.

    With the OIDs of `tables` only theirs.
    """
    given = {"schemas": list(schemas), "but": list(but), "tables": tables}
    found = session.execute(QUERIES["held"].format(who=QUERIES["who"]), given)
    return [Held._make((*row[:6], Holder(*row[6:]))) for row in found]


def holding(session: psycopg.Connection[Any], schemas: Sequence[str], *, but: Modes) -> list[str]:
    """Name those who hold or want relations there, each with one lock; see `held`."""
    first: dict[Holder, Held] = {}
    for one in held(session, schemas, but=but):
        first.setdefault(one.by, one)
    return [str(one) for one in first.values()]


def yields_ms(session: psycopg.Connection[Any], schemas: Sequence[str]) -> int | None:
    """Return in what time an automatic vacuum there gives way to a lock; None if there is none."""
    found = [one.yields_ms for one in held(session, schemas) if one.granted and one.yields_ms]
    return max(found, default=None)


def event_triggers(session: psycopg.Connection[Any]) -> list[str]:
    """Name the event triggers of a server that is not a standby."""
    return [name for (name,) in session.execute(QUERIES["triggers"])]


def error_of(session: psycopg.Connection[Any], statements: sql.Composed) -> psycopg.Error | None:
    """Try statements, which are rolled back, and give what is wrong with them.

    `session` is in autocommit.
    """
    try:
        with session.transaction(force_rollback=True):
            session.execute("SET TRANSACTION READ WRITE")
            session.execute(statements)
    except psycopg.Error as error:
        return error
    return None
