"""The move of rows from one shard's table to another's: copy, compare, delete (ADR 20).

A transaction of the target copies rows, compares the copies and writes down which version of
which row it copied. When it has committed, a transaction of the source deletes exactly these
versions, which it has held locked all the time. Whatever dies in between, each row is in one of
the shards, or in both with its record; the next run deletes the original then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple, NoReturn

import psycopg
from psycopg import sql

from shardctl.errors import Incomplete
from shardctl.maintenance.row_refusals import Outcome, table_unmovable
from shardctl.postgres import queries
from shardctl.state import events, lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.maintenance.misplaced import Table
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, ShardId

QUERIES = queries.load("shardctl.maintenance", "row_move.sql")
COMMAND = "rows move"
BATCH = 500
"""Rows that are copied, and held locked, at a time."""
BATCH_BYTES = 1 << 20
"""Text of these rows, unless one row is larger: they are held until it is copied and compared."""

_INSERT, _DELETE = 4, 8


class Column(NamedTuple):
    """A column; `type` is without the shard's schema, `place` its place in the primary key."""

    name: str
    type: str
    generated: bool
    place: int | None


class Row(NamedTuple):
    """One row of a batch as the target sees it; `shown` is its primary key for people."""

    number: int
    shown: str
    key: str
    version: str
    digest: str
    there: bool
    same: bool
    copied: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """Rows of a shard's table that belong to another shard, as they were counted."""

    table: Table
    belongs_to: ShardId
    node: NodeName
    schema: str
    rows: int
    columns: tuple[Column, ...]
    belongs: sql.Composed
    """The expression that gives the shard of a row of the alias `t`."""

    @property
    def primary_key(self) -> list[Column]:
        """The primary key's columns in its order."""
        keyed = [(c.place, c) for c in self.columns if c.place is not None]
        return [column for _, column in sorted(keyed)]


def pin(session: Connection) -> None:
    """Make a session fit for copying: texts of values, locks, commits that are on disk."""
    session.execute(QUERIES["pin"])
    session.commit()


def make_journal(session: Connection) -> None:
    """Make the table of copies where rows arrive for the first time."""
    session.execute(QUERIES["journal"])
    session.commit()


def obstacles(session: Connection, schema: str, table: str, *, source: bool) -> list[str]:
    """Name what would do more than move a row, in words for people."""
    event = _DELETE if source else _INSERT
    given = {"schema": schema, "table": table, "event": event}
    return [what for (what,) in session.execute(QUERIES["obstacles"], given)]


def read_columns(session: Connection, schema: str, table: str) -> tuple[Column, ...]:
    """Read a table's columns; empty where it is missing."""
    given = {"schema": schema, "table": table}
    return tuple(Column(*row) for row in session.execute(QUERIES["columns"], given))


class Copying:
    """The move of one pair's rows, over a session of the source and one of the target."""

    def __init__(self, source: Connection, target: Connection, pair: Pair) -> None:
        """Take sessions that are pinned and have no transaction open."""
        self._source, self._target, self._pair = source, target, pair
        self.outcome = Outcome()
        self._parts = _parts(pair)

    def run(self) -> None:
        """Move all rows that `listed` has found; `outcome` shows how many, also after an error.

        Raises copy_differs, table_unmovable, and psycopg.Error where a session is lost or a table
        stays locked.
        """
        _stand_in(self._target, self._pair.schema)
        self._forget()
        sized = self._ask(self._source, "numbers")
        self._source.commit()
        left: list[int] = []
        for numbers in batches(sized, BATCH, BATCH_BYTES):
            left += self._move(numbers)
        if left:
            [(self.outcome.in_use,)] = self._ask(self._source, "in_use", numbers=left)
            self._source.commit()

    def _move(self, numbers: Sequence[int]) -> list[int]:
        """Move a batch, or its halves where a row is refused; give those that are in use."""
        try:
            return self._batch(numbers)
        except psycopg.IntegrityError as error:
            self._target.rollback()
            self._source.rollback()
            if len(numbers) > 1:
                half = len(numbers) // 2
                return self._move(numbers[:half]) + self._move(numbers[half:])
            [(shown,)] = self._ask(self._source, "shown", numbers=numbers)
            self._source.commit()
            self.outcome.refused.append((shown, _reason(error, self._pair)))
            return []

    def _batch(self, numbers: Sequence[int]) -> list[int]:
        """Copy, compare, delete, each row once; give the numbers that were not locked."""
        locked = self._lock(numbers)
        rows = self._copy(locked)
        self._delete(rows)
        self._settle(rows)
        self.outcome.moved += len(rows)
        return [number for number in numbers if number not in locked]

    def _lock(self, numbers: Sequence[int]) -> list[int]:
        """Begin the source's transaction: its rows stay as they are until it ends."""
        self._hold(self._source, source=True)
        return [n for (n,) in self._ask(self._source, "lock", numbers=numbers)]

    def _copy(self, locked: Sequence[int]) -> list[Row]:
        """Carry out the target's transaction; give the rows that the source may delete."""
        self._hold(self._target, source=False)
        self._ask(self._target, "incoming")
        with (
            self._source.cursor() as read,
            self._target.cursor() as written,
            read.copy(self._statement("out", numbers=locked)) as out,
            written.copy(self._statement("in")) as into,
        ):
            for data in out:
                into.write(data)
        self._ask(self._target, "hold_existing")
        rows = [Row(*row) for row in self._ask(self._target, "compare")]
        new = [row.number for row in rows if not (row.there or row.copied)]
        accepted = [row for row in rows if row.same or row.copied or not row.there]
        self._ask(self._target, "insert", numbers=new)
        [(equal,)] = self._ask(self._target, "proof", numbers=new)
        if equal != len(new):
            self._abandon("the copies on the target differ from the original rows")
        self._ask(self._target, "record", numbers=[row.number for row in accepted])
        self._event(self._target, "copied", len(new))
        self._target.commit()
        self.outcome.conflicts += [
            (row.shown, f"shard {self._pair.belongs_to} has a different row with this key")
            for row in rows
            if row not in accepted
        ]
        return accepted

    def _delete(self, rows: Sequence[Row]) -> None:
        """End the source's transaction: the originals of proved copies are gone with it."""
        statement = self._statement(
            "delete",
            numbers=[row.number for row in rows],
            versions=[row.version for row in rows],
            digests=[row.digest for row in rows],
        )
        deleted = self._source.execute(statement).rowcount
        if deleted != len(rows):
            self._abandon(
                f"expected to delete {len(rows)} rows, but the statement matched {deleted}"
            )
        self._event(self._source, "deleted", deleted)
        self._source.commit()

    def _settle(self, rows: Sequence[Row]) -> None:
        """Forget the records: the originals are gone."""
        self._ask(self._target, "settle", settled=[row.key for row in rows])
        self._target.commit()

    def _forget(self) -> None:
        """Forget records of a killed run whose originals are gone."""
        copied = [key for (key,) in self._ask(self._target, "copied")]
        there = {key for (key,) in self._ask(self._source, "still_there", wanted=copied)}
        self._ask(self._target, "settle", settled=[key for key in copied if key not in there])
        self._source.commit()
        self._target.commit()

    def _hold(self, session: Connection, *, source: bool) -> None:
        """Lock a table against DDL, and look again for what would do more than move rows."""
        pair = self._pair
        schema = pair.table.schema if source else pair.schema
        table = sql.Identifier(schema, pair.table.name)
        session.execute(QUERIES["hold"].format(table=table))
        found = obstacles(session, schema, pair.table.name, source=source)
        if read_columns(session, schema, pair.table.name) != pair.columns:
            found.append("its columns have changed")
        if found:
            self._source.rollback()
            self._target.rollback()
            node, shard = (
                (pair.table.node, pair.table.shard) if source else (pair.node, pair.belongs_to)
            )
            raise table_unmovable(node, shard, pair.table.name, found)

    def _abandon(self, what: str) -> NoReturn:
        self._target.rollback()
        self._source.rollback()
        raise Incomplete(
            "copy_differs",
            f"rows of table {self._pair.table.name} from shard {self._pair.table.shard} to shard "
            f"{self._pair.belongs_to}: {what}; this batch was rolled back",
            hint="compare the tables of both shards with `shardctl verify --check structure`",
        )

    def _event(self, session: Connection, verb: str, count: int) -> None:
        if count:
            pair = self._pair
            result = f"{verb} {count} rows of {pair.table.name}: shard {pair.table.shard} to "
            events.record(session, COMMAND, f"{result}{pair.belongs_to}")

    def _statement(self, name: str, **lists: Sequence[object]) -> sql.Composed:
        given: dict[str, sql.Composable] = {
            name: sql.SQL("{}::" + _ARRAYS[name]).format(sql.Literal(list(values)))
            for name, values in lists.items()
        }
        side = "source" if name in _OF_SOURCE else "target"
        return QUERIES[name].format(**self._parts[side], **given)

    def _ask(self, session: Connection, name: str, **lists: Sequence[object]) -> list[Any]:
        cursor = session.execute(self._statement(name, **lists))
        return cursor.fetchall() if cursor.description else []


_ARRAYS: Mapping[str, LiteralString] = {
    "numbers": "bigint[]",
    "versions": "text[]",
    "digests": "text[]",
    "wanted": "text[]",
    "settled": "text[]",
}
_OF_SOURCE = {"numbers", "lock", "out", "delete", "still_there", "in_use", "shown"}


def listed(session: Connection, pair: Pair) -> None:
    """Make a session's temporary table of a pair's table: its misplaced rows, numbered."""
    _stand_in(session, pair.table.schema)
    session.execute(QUERIES["unlist"])
    session.execute(QUERIES["list"].format(**_parts(pair)["source"]))
    session.execute(QUERIES["index"])
    session.commit()


def batches(sized: Iterable[tuple[int, int]], most: int, most_bytes: int) -> Iterator[list[int]]:
    """Cut numbered rows into batches of so many rows and bytes, or of one larger row.

    >>> list(batches([(1, 3), (2, 3), (3, 4), (4, 50), (5, 1), (6, 1), (7, 1)], 2, 10))
    [[1, 2], [3], [4], [5, 6], [7]]
    """
    batch: list[int] = []
    held = 0
    for number, size in sized:
        if batch and (len(batch) == most or held + size > most_bytes):
            yield batch
            batch, held = [], 0
        batch.append(number)
        held += size
    if batch:
        yield batch


def _stand_in(session: Connection, schema: str) -> None:
    """Let texts of regclass and its like name a shard's own things as the other shard names its."""
    session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))


def _parts(pair: Pair) -> Mapping[str, dict[str, sql.Composable]]:
    """Compose what the statements of source and target are made of."""

    def columns(alias: str, names: Sequence[str]) -> sql.Composed:
        return _listed(sql.Identifier(alias, name) for name in names)

    names = [column.name for column in pair.columns]
    keys = [column.name for column in pair.primary_key]
    numbered = {name: f"c{number}" for number, name in enumerate(names)}
    settable = [column.name for column in pair.columns if not column.generated]
    digest = QUERIES["digest"].format(columns=columns("t", names))
    common: dict[str, sql.Composable] = {
        "shard": sql.Literal(int(pair.table.shard)),
        "belongs_to": sql.Literal(int(pair.belongs_to)),
        "name": sql.Literal(pair.table.name),
        "who": sql.Literal(lock.who()),
        "digest": digest,
    }
    source = common | {
        "table": sql.Identifier(pair.table.schema, pair.table.name),
        "belongs": pair.belongs,
        "shown": columns("t", keys),
        "keys": _as((sql.Identifier("t", name), f"k{n}") for n, name in enumerate(keys)),
        "columns": columns("t", names),
        "key": QUERIES["digest"].format(columns=columns("m", [f"k{n}" for n in range(len(keys))])),
        "same": _equal((("t", name), ("m", f"k{n}")) for n, name in enumerate(keys)),
    }
    target = common | {
        "table": sql.Identifier(pair.schema, pair.table.name),
        "columns": _listed(map(sql.Identifier, settable)),
        "plain": _as((sql.Identifier("t", name), c) for name, c in numbered.items()),
        "incoming": columns("i", [numbered[name] for name in settable]),
        "same": _equal((("t", name), ("i", numbered[name])) for name in keys),
    }
    return {"source": source, "target": target}


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _as(pairs: Iterable[tuple[sql.Composable, str]]) -> sql.Composed:
    return _listed(sql.SQL("{} AS {}").format(one, sql.Identifier(name)) for one, name in pairs)


def _equal(pairs: Iterable[tuple[tuple[str, str], tuple[str, str]]]) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(*one), sql.Identifier(*other))
        for one, other in pairs
    )


def _reason(error: psycopg.IntegrityError, pair: Pair) -> str:
    what = error.diag.message_primary or str(error)
    return f"shard {pair.belongs_to} rejects it: {what}"
