"""Replica identities that tables are lent for a stream, and give back.

PostgreSQL refuses UPDATE and DELETE of a published table that has none. REPLICA IDENTITY FULL needs
no key: the stream has whole old rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from psycopg import sql

from shardctl.errors import Incomplete
from shardctl.meter import listed
from shardctl.postgres import blocking, queries
from shardctl.postgres.patient import Patient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection

_QUERIES = queries.load("shardctl.postgres.logical", "identities.sql")
_PATIENCE_S = 60.0
_OWN = {"d": sql.SQL("DEFAULT")}
"""What a table had: NOTHING means the same as an index that was dropped."""


class Identity(NamedTuple):
    """A table without a replica identity; `was` is its `relreplident`."""

    schema: str
    table: str
    was: str


def missing(session: Connection, schemas: Sequence[str]) -> tuple[Identity, ...]:
    """List the tables of schemas by whose rows a stream cannot name what clients change."""
    found = session.execute(_QUERIES["missing"], {"schemas": list(schemas)})
    return tuple(Identity(*row) for row in found)


def lend(session: Connection, tables: Sequence[Identity]) -> None:
    """Let the stream have whole old rows of these tables; repeatable. Raises identity_blocked."""
    _change(session, tables, full=True)


def take_back(session: Connection, tables: Sequence[Identity]) -> None:
    """Give tables what they had, where they are published no more; repeatable.

    Raises identity_blocked.
    """
    _change(session, tables, full=False)


def _change(session: Connection, tables: Sequence[Identity], *, full: bool) -> None:
    """Alter one after the other: each waits for all who use it, a moment at a time."""
    schemas = [one.schema for one in tables]
    given = {"schemas": schemas, "tables": [one.table for one in tables], "full": full}
    found = session.execute(_QUERIES["to_change"], given).fetchall()
    places = {oid: tables[number - 1] for oid, number in found}

    def alter(few: Sequence[int], timeout_ms: int) -> dict[int, str]:
        with session.transaction():
            session.execute("SELECT set_config('lock_timeout', %s, true)", [f"{timeout_ms}ms"])
            for oid in few:
                schema, table, was = places[oid]
                wanted = sql.SQL("FULL") if full else _OWN.get(was, sql.SQL("NOTHING"))
                statement = sql.SQL("ALTER TABLE ONLY {} REPLICA IDENTITY {}")
                session.execute(statement.format(sql.Identifier(schema, table), wanted))
        return {}

    def held(few: Sequence[int]) -> dict[int, Held]:
        locks = blocking.held(session, schemas, tables=few)
        return {one.oid: one for one in reversed(locks) if one.oid is not None}

    patient = Patient(alter, held)
    for oid in places:
        patient.together([oid])
    if left := patient.singly(time.monotonic() + _PATIENCE_S):
        names = [f"{places[oid].schema}.{places[oid].table}" for oid in left]
        raise Incomplete(
            "identity_blocked",
            f"{listed(names, most=1)}: its replica identity could not be changed within "
            f"{_PATIENCE_S:g} s: {min(left.values())}",
            hint="wait until that has ended, or end it, then go on",
        )
