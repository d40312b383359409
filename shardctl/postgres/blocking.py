"""Who is in the way: sessions that hold a lock or that others wait for, and event triggers.

What a command does is tried against event triggers that fire for it, as in a change freeze: on
objects of its own, in a transaction that is rolled back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import psycopg

from shardctl.errors import ShardctlError
from shardctl.libpq import reason_of
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
_TEMPORARY = re.compile(r"\bpg_temp_([0-9]{1,7})(?=\.)")
QUERIES = queries.load("shardctl.postgres", "blocking.sql")

Rehearsal = Literal["read_only", "prune"]

_TAGS: dict[Rehearsal, tuple[str, ...]] = {
    "read_only": ("CREATE TRIGGER", "ALTER TABLE"),
    "prune": ("DROP SCHEMA",),
}


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
        user = f"user {self.user}" if self.user else None
        application = f"application {self.application}" if self.application else None
        state = self.state if self.state != "active" else None
        text = " ".join(without_passwords(self.statement or "").split())
        runs = f": {text[:_SHOWN]}{'...' if text[_SHOWN:] else ''}" if text else ""
        named = ", ".join(filter(None, (user, application, state, since)))
        # A role without rights for it sees no more than the pid of some.
        return f"session {self.pid} ({named}{runs})" if named else f"session {self.pid}"

    @property
    def passes(self) -> bool:
        """Whether it ends soon: an autovacuum, or a command of shardctl that measures sizes."""
        ours = (self.application or "").startswith("shardctl ")
        return ours or (self.statement or "").startswith("autovacuum: ")


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


def with_session(session: psycopg.Connection[Any], described: str) -> str:
    """Add to the description of a temporary object the session whose it is.

    Servers before 16 tell only which sessions may be that.
    """
    if (schema := _TEMPORARY.search(described)) is None:
        return described
    (found,) = queries.one(session, QUERIES["temporary"], {"number": int(schema[1])})
    left = f"left by a session that crashed: DROP SCHEMA {schema[0]} CASCADE"
    return f"{described} [temporary, {found or left}]"


class EventTriggerRefuses(ShardctlError):
    """An event trigger that refuses what a command would do."""

    def __init__(self, node: str, triggers: Sequence[str], reason: str) -> None:
        super().__init__(
            f"node {node}: an event trigger ({', '.join(triggers)}) rejects the command: {reason}",
            hint="change its function to allow statements of database.user, or disable it "
            "during the command: ALTER EVENT TRIGGER ... DISABLE",
        )


def event_triggers(
    session: psycopg.Connection[Any], tags: Sequence[str] | None = None
) -> list[str]:
    """Name the event triggers that fire for one of these commands, or for any."""
    given = {"tags": None if tags is None else list(tags)}
    return [name for (name,) in session.execute(QUERIES["triggers"], given)]


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


def rehearse(session: psycopg.Connection[Any], node: str, what: Rehearsal) -> None:
    """Try what a command does, if event triggers fire for it; raises EventTriggerRefuses.

    `session` is in autocommit.
    """
    triggers = event_triggers(session, _TAGS[what])
    error = error_of(session, QUERIES[what].format()) if triggers else None
    # Without a function around it, what failed is a right that the run needs not.
    if error is not None and error.diag.context:
        raise EventTriggerRefuses(node, triggers, reason_of(error)) from error
