"""Drop schemas in small transactions that block no other session for long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.moves import prune_look
from shardctl.moves.prune_look import QUERIES
from shardctl.postgres import blocking, room
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.state import events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, ShardId

_COMMAND = "prune"
_LARGEST_BATCH = 200
"""Objects that one transaction drops: its commit invalidates each in all sessions' caches."""
_PAUSE_S = 0.02
"""Pause between transactions, for other sessions' DDL and autovacuum."""
_LOCK_TIMEOUT = "50ms"
"""The longest time that other sessions queue behind a lock request of prune."""
_PATIENCE_S = 10.0
"""How long prune retries a schema in which another session holds a lock."""
_HELD_UP = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.InternalError_,  # a GRANT at the same moment
    psycopg.errors.UndefinedTable,  # another session dropped it after prune listed it
)
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


class _Depended(Exception):  # it never leaves this module
    """Schemas on which an object outside depends."""

    def __init__(self, outside: dict[str, str]) -> None:
        super().__init__(outside)
        self.outside = outside


def run(
    session: Connection, node: str, chosen: Sequence[Retired], progress: Progress
) -> dict[Retired, str]:
    """Drop schemas of the session's node; return those that remain, and why.

    The session holds the node's lock, in autocommit. What holds up one schema does not hold up
    the others. Raises NodeLost.
    """
    progress.expect(node, "pruning", len(chosen), "schemas")
    left: dict[Retired, str] = {}

    def drop(some: Sequence[Retired]) -> list[Retired]:
        waiting, failed = _drop(session, some, most)
        left.update(failed)
        progress.advance(node, len(some) - len(waiting) - len(failed))
        return waiting

    try:
        most = min(room.of(session), _LARGEST_BATCH)
        held_up: list[Retired] = []
        for batch in room.batches(chosen, most, lambda one: one.objects):
            held_up += drop(batch)
        deadline = time.monotonic() + _PATIENCE_S
        while held_up and time.monotonic() < deadline:
            progress.waits(node, f"sessions that use {held_up[0].schema}")
            held_up = [one for tried in held_up for one in drop([tried])]
        left |= _reasons(session, held_up)
        progress.end(node)
    except psycopg.Error as error:
        raise NodeLost(node, reason_of(error)) from error
    return left


def _drop(
    session: Connection, batch: Sequence[Retired], most: int
) -> tuple[list[Retired], dict[Retired, str]]:
    """Drop a batch; return the schemas that are blocked, and those that cannot be dropped, why."""
    todo = list(batch)
    waiting: list[Retired] = []
    failed: dict[Retired, str] = {}
    while todo:
        try:
            if todo[0].objects > most:  # it is the only one in its batch
                _shrink(session, todo[0].schema, most)
            _transaction(session, [one.schema for one in todo])
            todo = []
        except _Depended as error:
            found = error.outside
            failed |= {o: f"{found[o.schema]} depends on it" for o in todo if o.schema in found}
        except _HELD_UP:
            busy = _reasons(session, todo, reported="")
            # If no user of any schema is found, each is tried separately later.
            waiting += [one for one in todo if busy[one]] or todo
        except psycopg.Error as error:
            if is_lost(error):
                raise
            if len(todo) == 1:
                failed[todo[0]] = reason_of(error)
            waiting += todo  # each is tried separately, so that one does not block the others
        todo = [one for one in todo if one not in waiting and one not in failed]
        time.sleep(_PAUSE_S)
    return [one for one in waiting if one not in failed], failed


def _transaction(session: Connection, schemas: Sequence[str]) -> None:
    """Drop schemas at once; raises _Depended, and what _HELD_UP lists."""
    with session.transaction():
        tables = session.execute(QUERIES["tables"], {"schemas": schemas}).fetchall()
        _lock(session, tables)
        _require_alone(session, schemas)
        session.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(
                sql.SQL(", ").join(map(sql.Identifier, schemas))
            )
        )
        events.record(session, _COMMAND, f"dropped {listed(schemas, most=_NAMED)}")


def _shrink(session: Connection, schema: str, most: int) -> None:
    """Drop the tables of a schema in batches, until one transaction can lock the rest."""
    while _require_alone(session, [schema]) > most:
        leaves = session.execute(QUERIES["leaves"], {"schema": schema}).fetchall()
        if not leaves:
            return
        for few in room.batches(leaves, most, lambda leaf: leaf[1]):
            tables = [sql.Identifier(schema, name) for name, _ in few]
            with session.transaction():
                _lock(session, [(schema, name) for name, _ in few])
                _require_alone(session, [schema])
                session.execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.SQL(", ").join(tables)))
            time.sleep(_PAUSE_S)


def _lock(session: Connection, tables: Sequence[tuple[str, str]]) -> None:
    """Take the locks that the drop needs: then no new object can depend on the tables."""
    session.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
    if tables:
        named = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*t)) for t in tables)
        session.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(named))


def _require_alone(session: Connection, schemas: Sequence[str]) -> int:
    """Check that CASCADE drops only these schemas' own objects; return their number.

    Raises _Depended.
    """
    contents = session.execute(QUERIES["contents"], {"schemas": schemas}).fetchall()
    outside = {
        schema: blocking.with_session(session, found)
        for schema, _, found in contents
        if found is not None
    }
    if outside:
        raise _Depended(outside)
    return sum(objects for _, objects, _ in contents)


def _reasons(
    session: Connection, waiting: Sequence[Retired], *, reported: str = "another session locked it"
) -> dict[Retired, str]:
    """Return which session uses each schema; `reported` where none does at this moment."""
    users = prune_look.users(session, [one.schema for one in waiting])
    return {
        one: f"{users[one.schema]} uses it" if one.schema in users else reported for one in waiting
    }
