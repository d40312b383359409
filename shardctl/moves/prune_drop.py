"""Drop schemas in small transactions that block no other session for long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.moves import prune_look
from shardctl.moves.prune_look import QUERIES
from shardctl.postgres import blocking
from shardctl.postgres.connection import NodeLost
from shardctl.postgres.patient import Patient, batches, lockable
from shardctl.state import events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, ShardId

_COMMAND = "prune"
_LARGEST_BATCH = 200
"""Objects that one transaction drops: its commit invalidates each in all sessions' caches."""
_PAUSE_S = 0.02
"""Pause between transactions, for other sessions' DDL and autovacuum."""
_PATIENCE_S = 10.0
"""How long prune retries a schema in which another session holds a lock."""
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Retired:
    """One retired schema on a node; `why_not` is None when it may be dropped."""

    node: NodeName
    schema: str
    shard: ShardId | None
    move: str
    objects: int
    """How many locks DROP takes."""
    size_bytes: int
    """0 where a lock prevented the measurement; then it is in use."""
    why_not: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it in the shape of docs/reference/json.md."""
        return {
            "node": self.node,
            "schema": self.schema,
            "shard": self.shard,
            "move": self.move,
            "size_bytes": self.size_bytes,
            "refused": self.why_not,
        }


def run(
    session: Connection, node: str, chosen: Sequence[Retired], progress: Progress
) -> dict[Retired, str]:
    """Drop schemas of the session's node; return those that remain, and why.

    The session holds the node's lock, in autocommit. What holds up one schema does not hold up
    the others. Raises NodeLost.
    """
    progress.expect(node, "pruning", len(chosen), "schemas")

    def drop(some: Sequence[Retired], timeout_ms: int) -> dict[Retired, str]:
        if some[0].objects > most:  # it is the only one in its batch
            _shrink(session, some[0].schema, most, timeout_ms)
        failed = _transaction(session, some, timeout_ms)
        progress.advance(node, len(some) - len(failed))
        time.sleep(_PAUSE_S)
        return failed

    def held(some: Sequence[Retired]) -> dict[Retired, Held]:
        users = prune_look.users(session, [one.schema for one in some])
        return {one: users[one.schema] for one in some if one.schema in users}

    try:
        most = min(lockable(session), _LARGEST_BATCH)
        patient = Patient(drop, held, partial(progress.waits, node))
        for batch in batches(chosen, most, lambda one: one.objects):
            patient.together(batch)
        left = patient.singly(time.monotonic() + _PATIENCE_S)
        progress.end(node)
    except psycopg.Error as error:
        raise NodeLost(node, reason_of(error)) from error
    return left


def _transaction(
    session: Connection, some: Sequence[Retired], timeout_ms: int
) -> dict[Retired, str]:
    """Drop schemas at once, but for those on which an object outside depends; give these, why."""
    with session.transaction():
        schemas = [one.schema for one in some]
        tables = session.execute(QUERIES["tables"], {"schemas": schemas}).fetchall()
        _lock(session, tables, timeout_ms)
        _, outside = _contents(session, schemas)
        if dropped := [schema for schema in schemas if schema not in outside]:
            named = sql.SQL(", ").join(map(sql.Identifier, dropped))
            session.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(named))
            events.record(session, _COMMAND, f"dropped {listed(dropped, most=_NAMED)}")
    return {o: f"{outside[o.schema]} depends on it" for o in some if o.schema in outside}


def _shrink(session: Connection, schema: str, most: int, timeout_ms: int) -> None:
    """Drop the tables of a schema in batches, until one transaction can lock the rest."""
    while True:
        objects, outside = _contents(session, [schema])
        leaves = session.execute(QUERIES["leaves"], {"schema": schema}).fetchall()
        if outside or objects <= most or not leaves:
            return
        for few in batches(leaves, most, lambda leaf: leaf[1]):
            tables = [sql.Identifier(schema, name) for name, _ in few]
            with session.transaction():
                _lock(session, [(schema, name) for name, _ in few], timeout_ms)
                if _contents(session, [schema])[1]:
                    return
                session.execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.SQL(", ").join(tables)))
            time.sleep(_PAUSE_S)


def _lock(session: Connection, tables: Sequence[tuple[str, str]], timeout_ms: int) -> None:
    """Take the locks that the drop needs: then no new object can depend on the tables."""
    session.execute("SELECT set_config('lock_timeout', %s, true)", [f"{timeout_ms}ms"])
    if tables:
        named = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*t)) for t in tables)
        session.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(named))


def _contents(session: Connection, schemas: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Count the objects of schemas, and name for each an object outside that CASCADE would drop."""
    contents = session.execute(QUERIES["contents"], {"schemas": schemas}).fetchall()
    outside = {
        schema: blocking.with_session(session, found)
        for schema, _, found in contents
        if found is not None
    }
    return sum(objects for _, objects, _ in contents), outside
