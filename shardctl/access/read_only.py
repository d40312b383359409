"""Read-only shards: every table has a trigger that refuses to be written to, for everybody.

The triggers are all that there is: their arguments have the time and the operator, so that nothing
can contradict them, and a clone of the node, a restart or a rename of the schema keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.rows import class_row

from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import ShardId

QUERIES = queries.load("shardctl.access", "read_only.sql")

BY_STATEMENT, BY_ROW = "shardctl_read_only", "shardctl_read_only_row"
"""The names of the triggers."""


class Wanted(StrEnum):
    """What shards are to become."""

    on = "on"
    off = "off"

    @property
    def command(self) -> str:
        """The command that does it, as locks and events name it."""
        return f"read-only {self.value}"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a shard, partitions and foreign tables among them.

    `foreign` tables have no TRUNCATE that could be refused. `by_row` is whether it can be written
    to without a statement that names it, so that it needs a trigger for rows, too. `refuses` is
    whether it has all that it needs, in force; `arguments` are those of the first such trigger, in
    hex, whether in force or not; None: it has none. `triggers` are the names of those that it has.
    `ours` is whether the login role may change it.
    """

    schema: str
    oid: int
    name: str
    foreign: bool
    by_row: bool
    refuses: bool
    arguments: str | None
    triggers: list[str] = field(hash=False)
    ours: bool

    @property
    def place(self) -> sql.Identifier:
        """The table, as statements name it."""
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Mark:
    """That a shard is read-only, or was to be: its time, its operator, how many of its tables are.

    `since` is None where another session has made the triggers.
    """

    since: datetime | None
    by: str
    tables: int
    refusing: int

    @property
    def whole(self) -> bool:
        """Whether nothing can be written to the shard's tables."""
        return self.refusing == self.tables


def tables(session: Connection, schemas: Sequence[str]) -> dict[str, list[Table]]:
    """Read the tables of the schemas that exist, with one question; some have none."""
    found: dict[str, list[Table]] = {}
    with session.cursor(row_factory=class_row(Table)) as cursor:
        for one in cursor.execute(QUERIES["tables"], {"schemas": list(schemas)}):
            of_schema = found.setdefault(one.schema, [])
            # The outer join's row of a schema without tables.
            if one.oid is not None:
                of_schema.append(one)
    return found


def marks(session: Connection, schemas: Sequence[str]) -> dict[str, Mark]:
    """Return which of these schemas are read-only, at least in part; one question."""
    statement = QUERIES["marks"].format(tables=QUERIES["tables"])
    return {
        schema: Mark(*_read(arguments), count, refusing)
        for schema, count, refusing, arguments in session.execute(
            statement, {"schemas": list(schemas)}
        )
    }


def alike(found: Mapping[ShardId, Mark]) -> dict[Mark, tuple[ShardId, ...]]:
    """Group the shards whose marks are equal; tables count where not all refuse."""
    groups: dict[Mark, list[ShardId]] = {}
    for shard, mark in sorted(found.items()):
        same = replace(mark, tables=0, refusing=0) if mark.whole else mark
        groups.setdefault(same, []).append(shard)
    return {mark: tuple(shards) for mark, shards in groups.items()}


def _read(arguments: str) -> tuple[datetime | None, str]:
    r"""Read time and operator from a trigger's arguments, in hex, each ended by a zero byte.

    >>> _read(b"5\x002026-11-21T10:00:00.000Z\x00ann@ops1\x00".hex())
    (datetime.datetime(2026, 11, 21, 10, 0, tzinfo=datetime.timezone.utc), 'ann@ops1')
    >>> _read("")
    (None, 'an unknown user')
    """
    parts = bytes.fromhex(arguments).decode(errors="replace").split("\0")
    try:
        _, since, who, _ = parts
        return datetime.fromisoformat(since), who
    except ValueError:  # a trigger that was made by hand
        return None, "an unknown user"
