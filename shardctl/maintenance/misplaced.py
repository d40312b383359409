"""Rows that belong to another shard than the one that holds them.

A row belongs to the shard of its key. In a table whose key no migration names, it belongs to the
shard that made its id. Where a key is unknown, its rows must not be judged by their ids: a row that
was moved by its key keeps the id that its old shard made, and would go back.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from shardctl.checks import scan
from shardctl.errors import Misused, Refused, ShardctlError, together
from shardctl.ids import generator
from shardctl.libpq import reason_of
from shardctl.maintenance import places
from shardctl.postgres import catalog, queries
from shardctl.provision import refusals
from shardctl.state import keys, lock, migrations, observer
from shardctl.state.cluster import QUERIES as STATE
from shardctl.topology import ranges
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.maintenance.places import Place
    from shardctl.postgres.catalog import Keyed
    from shardctl.postgres.connection import Connection
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Node, NodeName, Topology

QUERIES = queries.load("shardctl.maintenance", "queries.sql")


@dataclass(frozen=True, slots=True)
class Table:
    """One shard's table; `column` holds the key, or with `by_id` the id that names the shard.

    `integer` is whether that is a number. `settable` are the columns that are not generated, and
    `by_hand` names what would do more than move a row. `names` are its own, and those of its
    partitioned tables or inheritance parents, at any depth.
    """

    node: NodeName
    shard: ShardId
    schema: str
    name: str
    column: str
    by_id: bool
    integer: bool
    primary_key: tuple[str, ...]
    settable: tuple[str, ...]
    by_hand: tuple[str, ...]
    names: tuple[str, ...]

    def belongs(self, topology: Topology) -> sql.Composed:
        """Compose the expression that gives a row's shard, of the table's alias `t`."""
        # Where keys are ids, too: shard_of() is an error for what no shard can have made.
        is_id = self.by_id or (self.integer and topology.key_rule == "id")
        column = sql.SQL("t.{}").format(sql.Identifier(self.column))
        return scan.belongs(topology, column, is_id=is_id)


@dataclass(slots=True)
class Tables:
    """A node's tables whose rows name their shard; `named` keys have a table there."""

    found: Sequence[Table]
    named: Collection[str]
    problems: list[ShardctlError]
    misplaced: list[Misplaced] = field(default_factory=list)


class Example(NamedTuple):
    """A misplaced row: its primary key (None where there is none) and key or id, as text.

    `insert` and `delete` move it, where they were asked for and the table allows it: the first in
    the right shard, the second in the wrong one, where it finds only the version that was read.
    """

    primary_key: str | None
    value: str
    insert: str | None = None
    delete: str | None = None


@dataclass(slots=True)
class Misplaced:
    """How many rows of a shard's table belong to another shard, and some of them."""

    table: Table
    belongs_to: ShardId
    rows: int = 0
    examples: list[Example] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "node": self.table.node,
            "shard": self.table.shard,
            "table": self.table.name,
            "by": "id" if self.table.by_id else "key",
            "column": self.table.column,
            "belongs_to": self.belongs_to,
            "rows": self.rows,
            "examples": [one._asdict() for one in self.examples],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What was found; `problems` name which shards and tables could not be searched.

    `absent` are tables whose key is named and that no shard has.
    """

    found: tuple[Misplaced, ...]
    problems: tuple[ShardctlError, ...]
    absent: tuple[str, ...]


def search(
    topology: Topology,
    shards: Collection[ShardId],
    names: Collection[str],
    *,
    limit: int,
    statements: bool = False,
    progress: Progress,
) -> Report:
    """Search tables of shards on their owners, at most `limit` examples a shard that they are of.

    `names` are the tables, or parents of them; none stands for all. A table whose named key is
    missing is a problem and not judged by its id. With `statements` examples have those that move
    them. Raises table_unknown, and what reading the migrations and the nodes' maps raises.
    """
    files = migrations.read(topology.database.migrations)
    columns = keys.of_cluster(topology, files)
    purpose = lock.purpose("rows misplaced")
    chosen = places.of_shards(places.look(topology, purpose=purpose), shards)
    of_nodes = chosen.by_node()

    def look(session: Connection, node: Node) -> Tables:
        session.execute(
            "SET default_transaction_read_only TO on; SET lock_timeout TO '3s';"
            "SET row_security TO off"
        )
        catalog.read_tables_only(session)
        _require_ran(session, of_nodes[node.name], files)
        tables = read_tables(session, of_nodes[node.name], columns, names)
        searched = [t for t in tables.found if not names or not set(names).isdisjoint(t.names)]
        relations = [(one.schema, one.name) for one in searched]
        reading = scan.Scan(session, node.name, "reading rows", relations, progress)
        try:
            for table in searched:
                try:
                    tables.misplaced += _searched(
                        session, topology, reading, table, limit=limit, statements=statements
                    )
                except psycopg.Error as error:
                    if session.closed:
                        raise
                    tables.problems.append(table_unread(table, error))
        finally:
            progress.end(node.name)
        return tables

    nodes = [topology.nodes[name] for name in of_nodes]
    asked = observer.ask(topology, look, purpose=purpose, nodes=nodes)
    seen = [asked.values[name] for name in of_nodes if name in asked.values]
    problems = [error for _, error in chosen.left_out] + list(asked.errors.values())
    problems += [error for one in seen for error in one.problems]
    known = {name for one in seen for table in one.found for name in table.names}
    named = {name for one in seen for name in one.named}
    unknown = [table for table in names if table not in known]
    if unknown and not problems:
        raise Misused(
            "table_unknown",
            f"no shard has a table {unknown[0]!r} with a shard key",
            hint=f"tables with a shard key: {', '.join(sorted(known)) or 'none'}",
        )
    found = [row for one in seen for row in one.misplaced]
    found.sort(key=lambda one: (one.table.name, one.table.shard, one.belongs_to))
    absent = tuple(table for table in columns if table not in named and not problems)
    return Report(tuple(found), tuple(problems), absent)


def read_tables(
    session: Connection,
    of_node: Sequence[Place],
    columns: Mapping[str, str],
    names: Collection[str],
) -> Tables:
    """Read the tables of a node's shards whose rows name their shard; `columns` are the keys'.

    Problems are those of the tables `names`, or of all.
    """
    node = of_node[0].node
    shards = {p.schema: p.shard for p in of_node if p.schema is not None and p.shard is not None}
    keyed = catalog.read_keyed(session, list(shards), columns)
    fit = [one for one in keyed if one.present and one.ours]
    keys_of = {(one.schema, one.name): one for one in fit}
    lacking = {(one.schema, one.name) for one in keyed if one not in fit}
    given = {"schemas": list(shards), "next_id": generator.WRAPPER}
    found = [
        Table(
            node=node,
            shard=shards[schema],
            schema=schema,
            name=name,
            column=made if key is None else key.column,
            by_id=key is None,
            integer=key is None or key.integer,
            primary_key=tuple(primary_key),
            settable=tuple(settable),
            by_hand=tuple(by_hand),
            names=(name, *parents),
        )
        for schema, name, made, primary_key, settable, by_hand, parents in session.execute(
            QUERIES["tables"], given
        )
        if (key := keys_of.get((schema, name))) or (made and (schema, name) not in lacking)
    ]
    named = {one.named for one in keyed}
    touched = {k.named for k in keyed if k.name in names or k.named in names} if names else named
    wrong = _unjudged(node, shards, [one for one in keyed if one.named in touched])
    return Tables(found, named, list(wrong))


def _searched(
    session: Connection,
    topology: Topology,
    reading: scan.Scan,
    table: Table,
    *,
    limit: int,
    statements: bool,
) -> Collection[Misplaced]:
    """Search one table; raises psycopg.Error."""
    found: dict[ShardId, Misplaced] = {}
    keys = [sql.Identifier("t", name) for name in table.primary_key]
    # No cast: it may be a function of the type's owner. Without a key no row can be identified.
    primary_key = sql.SQL("concat_ws(',', {})").format(sql.SQL(", ").join(keys))
    whole = statements and keys and not table.by_hand
    given: dict[str, sql.Composable] = {
        "belongs": table.belongs(topology),
        "table": sql.Identifier(table.schema, table.name),
        "shard": sql.Literal(int(table.shard)),
        "primary_key": primary_key if keys else sql.SQL("NULL::text"),
        "column": sql.Identifier(table.column),
        "limit": sql.Literal(limit),
        "moves": _moves(session, table) if whole else sql.SQL("NULL, NULL"),
    }

    def part(part: sql.Composable) -> None:
        for belongs, rows, *example in session.execute(QUERIES["rows"].format(**given, part=part)):
            one = found.setdefault(ShardId(belongs), Misplaced(table, ShardId(belongs)))
            one.rows += rows
            if len(one.examples) < limit:
                one.examples.append(Example(*example))

    odd = sql.SQL("{} <> {}").format(given["belongs"], given["shard"])
    with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        reading.read((table.schema, table.name), odd, part)  # else it was dropped a moment ago
    return found.values()


def _moves(session: Connection, table: Table) -> sql.Composed:
    """Compose what lets the server write the statements that move a row."""

    def values(columns: Sequence[str]) -> sql.Composed:
        each = [sql.SQL("format('%L', {})").format(sql.Identifier("t", name)) for name in columns]
        return sql.SQL("array_to_string(ARRAY[{}], ', ')").format(sql.SQL(", ").join(each))

    def names(columns: Sequence[str]) -> sql.Literal:
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        return sql.Literal(listed.as_string(session))

    return QUERIES["moves"].format(
        schema=sql.Literal(table.schema),
        name=sql.Literal(table.name),
        columns=names(table.settable),
        values=values(table.settable),
        keys=names(table.primary_key),
        key_values=values(table.primary_key),
    )


def table_unread(table: Table, error: psycopg.Error) -> Refused:
    """Report a table whose rows could not be read."""
    return Refused(
        "table_unread",
        f"node {table.node}: shard {table.shard}: table {table.name}: {reason_of(error)}",
        hint="fix this and run the command again; `shardctl init` creates shard_of",
    )


def _require_ran(session: Connection, places: Sequence[Place], files: Sequence[Migration]) -> None:
    """See that the files which name keys are those that ran in a node's shards.

    Raises migration_changed, keys_unknown, or Problems of several.
    """
    node, shards = places[0].node, {place.shard for place in places if place.shard is not None}
    ran = {
        (file, checksum): there
        for file, checksum, every in session.execute(STATE["migrations"])
        if (there := shards.intersection(every))
    }
    known = {migration.name for migration in files}
    odd = {migration.name: set(shards) for migration in files if keys.lines(migration)}
    for (file, _), there in ran.items():
        if file not in known:
            odd[file] = there
        elif file in odd:
            odd[file] -= there
    problems = refusals.changed(node, ran, files)
    problems += [
        Refused(
            "keys_unknown",
            f"node {node}: migration {file} is missing here, or names keys and has not run, in "
            f"shards {ranges.of(left)}",
            hint="use the newest migrations, which name the keys that place each row, and run "
            "`shardctl migrate`",
        )
        for file, left in odd.items()
        if left
    ]
    if problems:
        raise together(problems)


def _unjudged(
    node: NodeName, shards: Mapping[str, ShardId], keyed: Sequence[Keyed]
) -> Iterator[ShardctlError]:
    """Find tables of a node's shards that cannot be judged by their keys."""
    lacking: dict[tuple[str, str], set[ShardId]] = {}
    for one in keyed:
        where = f"node {node}: shard {shards[one.home]}: table {one.named}"
        if not one.present:
            lacking.setdefault((one.named, one.column), set()).add(shards[one.home])
        elif not one.ours:  # its casts would be run
            yield Refused(
                "key_type_foreign",
                f"{where}: the type of column {one.column}, which is the key of table {one.name}, "
                "belongs to another role than shardctl's and superusers', and so do its casts",
                hint="make the key an integer, text or a uuid, or give the type to the role of "
                "shardctl",
            )
        elif one.kind == "f" or (one.kind == "r" and one.schema not in shards):
            what = "it is a foreign table" if one.kind == "f" else "it is not in the shard's schema"
            yield Refused(
                "child_unsearched",
                f"{where}: its child {one.schema}.{one.name} cannot be searched: {what}",
                hint="move it into the shard's schema, or detach it",
            )
    for (table, column), found in lacking.items():
        yield Refused(
            "key_column_missing",
            f"node {node}: table {table} of shards {ranges.of(found)} has no column {column}, "
            "which is its key",
            hint=f"name its key in a new migration, `-- shardctl: key {table}.COLUMN`, or in "
            "`database.keys`",
        )
