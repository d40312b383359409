"""What a killed pg_repack leaves: found by the catalog, dropped where no pg_repack runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.maintenance.repack_look import COMMAND, QUERIES
from shardctl.postgres import repack_left
from shardctl.postgres.connection import is_lost
from shardctl.postgres.repack_left import LOCK_CLASS
from shardctl.state import events

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

_LOCK_TIMEOUT = "200ms"
"""Other sessions that use the table wait behind this for so long at the most."""
_PATIENCE_S = 10.0
_PAUSE_S = 0.1


def all_of(session: Connection) -> dict[int, str]:
    """Drop all that killed runs left in the session's database; give what stays, and why.

    The session is in autocommit and holds the node's lock. Keys are the numbers (oids) of the
    tables that were to be repacked.
    """
    left = {one.oid: _drop(session, one.oid) for one in repack_left.read(session)}
    return {oid: why for oid, why in left.items() if why is not None}


def of_table(session: Connection, oid: int) -> str | None:
    """Drop what a run that has just ended left of one table; explain why it stays, or None.

    Its session may be at work for a moment yet, and is waited for.
    """
    return _drop(session, oid)


def _drop(session: Connection, oid: int) -> str | None:
    """Try until it is dropped or `_PATIENCE_S` have passed; explain why it stays, or None."""
    deadline = time.monotonic() + _PATIENCE_S
    given = {"class": LOCK_CLASS, "table": oid}
    while True:
        try:
            if _transaction(session, oid):
                return None
            [holder] = session.execute(QUERIES["holder"], given).fetchone() or ["another session"]
            why = f"{holder} has pg_repack's lock on it"
        except psycopg.errors.LockNotAvailable:
            why = "the remains of an earlier pg_repack are in use"
        except psycopg.Error as error:
            if is_lost(error):
                raise
            return (
                "the remains of an earlier pg_repack cannot be dropped: "
                f"{error.diag.message_primary}"
            )
        if time.monotonic() > deadline:
            return why
        time.sleep(_PAUSE_S)


def _transaction(session: Connection, oid: int) -> bool:
    """Drop it all at once, if there is anything; give False where a pg_repack is at the table."""
    given = {"class": LOCK_CLASS, "table": oid}
    with session.transaction():
        session.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
        row = session.execute(QUERIES["claim"], given).fetchone()
        if row is None or not row[0]:
            return False
        found = [one for one in repack_left.read(session) if one.oid == oid]
        if not found:
            return True
        named = session.execute(QUERIES["name_of"], given).fetchone()
        if named is not None:
            # Before its log, in the order of those who write to both.
            table = sql.Identifier(*named)
            session.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(table))
            session.execute(sql.SQL("DROP TRIGGER IF EXISTS repack_trigger ON {}").format(table))
        for kind, name in (("TABLE", "log"), ("TYPE", "pk"), ("TABLE", "table")):
            session.execute(
                sql.SQL("DROP {} IF EXISTS {}").format(
                    sql.SQL(kind), sql.Identifier("repack", f"{name}_{oid}")
                )
            )
        cleaned = found[0].name or f"table {oid}, which no longer exists"
        events.record(session, COMMAND, f"dropped the remains of a killed pg_repack for {cleaned}")
    return True
