"""Ids that the shard which holds them cannot have made; and how long the layout lasts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

from psycopg import errors, sql

from shardctl.checks.check import ERROR, NOTE, QUERIES, WARNING, Check, Rule, Rules
from shardctl.checks.scan import Scan, belongs
from shardctl.ids import generator, times
from shardctl.ids.layout import Layout
from shardctl.postgres import catalog, patient, queries
from shardctl.state import keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.check import Finding, Place, View
    from shardctl.checks.scan import Relation
    from shardctl.topology.model import ShardId, Topology


CHUNK = 25
"""Tables a statement. Measured with 3,000: 10 take 0.5 s, 25 to 200 all 0.45 s; fewer, fewer locks.
"""

FEW_YEARS = 5

_ID, _KEY = "id {example} in shard {shard}", "key {example} in shard {shard}"
RULES = Rules(
    "ids",
    {
        "other_shard": Rule(
            ERROR,
            f"{_ID}, made for shard {{other}}{{more}}",
            "ids from next_id() of the same shard",
            # The key decides where it is named: a row that was moved by its key keeps its id.
            "list misplaced rows with `shardctl rows misplaced`, whose --sql moves them; keep the "
            "other rows or give them new ids",
        ),
        "not_generated": Rule(
            ERROR,
            f"{_ID}{{more}}",
            "ids that next_id() has made: positive, and older than the node's clock",
            "check the id's time with `shardctl decode-id ID`; if a clock was wrong, correct it; "
            "otherwise give the rows new ids from next_id() of their shard",
        ),
        "other_key": Rule(
            ERROR,
            f"{_KEY} belongs to shard {{other}}{{more}}",
            "rows whose key belongs to this shard",
            "list these rows with `shardctl rows misplaced`; its --sql writes what moves them",
        ),
        "no_key": Rule(
            ERROR,
            f"{_KEY} is not an id of any shard{{more}}",
            "integer keys that are ids of this cluster (shards: {{key: id}})",
            "correct the key: no shard can have made it, so no application finds the row by it",
        ),
        "locked": Rule(
            WARNING,
            "locked by another session",
            "readable ids",
            "run `shardctl verify --check ids` again when that session has ended",
        ),
        "key_unread": Rule(
            # A migration's line stays behind when its table is dropped or renamed.
            NOTE,
            "no shard has this column, or it is not an integer: --deep did not compare it",
            "the integer key column that a migration or the topology names",
            "name the right column in a new migration, `-- shardctl: key {table}.COLUMN`, or run "
            "`shardctl rows misplaced --table {table}`, which compares keys of every kind",
        ),
        "years_left": Rule(
            WARNING,
            "ids last until {end}",
            f"at least {FEW_YEARS} years",
            "plan a new cluster with another `id:`: it cannot be changed in this one",
        ),
    },
)


Code = Literal["not_generated", "other_shard", "other_key", "no_key", "locked"]

AHEAD_MS = 10_000
"""The allowed lead of ids over their node's clock: the strict generator has one in a burst."""


@dataclass(frozen=True, slots=True)
class Odd:
    """One kind of fault in one shard's table.

    `example` is the id, or the key where the table has no id; None where nothing was read.
    `other` is the shard that the example belongs to. `count` is None where not all rows were
    read.
    """

    shard: ShardId
    table: str
    code: Code
    example: int | None = None
    other: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is odd on one node, when its clock showed `now_ms`."""

    now_ms: int
    odd: tuple[Odd, ...]
    compared: frozenset[str] = frozenset()
    """Tables whose keys were compared, by the names under which these are known."""


def look(place: Place) -> Seen:
    """Read the oldest and newest id of every table, or with `deep` every row of it.

    Several statements, since one over all tables would fill the lock table. Raises, with
    `deep`, what reading the migrations and their key columns raises.
    """
    catalog.read_tables_only(place.connection)
    names = {"schemas": list(place.shards), "next_id": generator.WRAPPER}
    tables = place.connection.execute(QUERIES["id_tables"], names).fetchall()
    ids = {(schema, table): id_ for schema, table, id_, locked in tables if not locked}
    odd = [
        Odd(place.shards[schema], table, "locked") for schema, table, _, locked in tables if locked
    ]
    moment = _Moment(int(queries.one(place.connection, QUERIES["moment"])[0]), time.monotonic())
    compared: frozenset[str] = frozenset()
    if place.deep:
        compared = _scan(place, ids, moment, odd)
    else:
        for chunk in patient.chunks(ids, CHUNK):
            odd += _ends(place, {table: ids[table] for table in chunk}, moment)
    return Seen(moment.now_ms, tuple(odd), compared)


class _Moment(NamedTuple):
    """What the node's clock showed when the monotonic clock here showed `at`, in s."""

    now_ms: int
    at: float

    def limit(self, layout: Layout) -> int:
        """Give the first id that is from the future now."""
        now_ms = self.now_ms + int((time.monotonic() - self.at) * 1000)
        ticks = (now_ms + AHEAD_MS - layout.epoch_ms) // layout.tick_ms + 1
        return max(0, min(ticks << layout.shard_bits + layout.sequence_bits, _HIGHEST))


def _ends(place: Place, ids: Mapping[Relation, str], moment: _Moment) -> Iterator[Odd]:
    """Judge the oldest and the newest id of some tables, each from an end of its index."""
    layout, homes = Layout.of(place.topology.id), list(ids)
    statement = sql.SQL("\nUNION ALL\n").join(
        QUERIES["ends"].format(
            number=sql.Literal(number), id=sql.Identifier(ids[home]), table=sql.Identifier(*home)
        )
        for number, home in enumerate(homes)
    )
    for number, *both in place.connection.execute(statement):
        schema, table = homes[number]
        shard = place.shards[schema]
        for one in dict.fromkeys(found for found in both if found is not None):
            made = one >> layout.sequence_bits & layout.max_shard
            if one < 0 or (made == shard and one >= moment.limit(layout)):
                yield Odd(shard, table, "not_generated", one)
            elif made != shard:
                yield Odd(shard, table, "other_shard", one, made)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Report odd ids by table and kind, over all nodes, and a layout that ends soon."""
    odd = [(one, node) for node, seen in view.seen.items() for one in seen.odd]
    odd.sort(key=lambda pair: (pair[0].table, pair[0].code, pair[0].shard))
    for (table, code), pairs in groupby(odd, key=lambda pair: (pair[0].table, pair[0].code)):
        group = list(pairs)
        nodes = {node for _, node in group}
        first, count = group[0][0], sum(one.count or 0 for one, _ in group)
        yield RULES.finding(
            code,
            node=nodes.pop() if len(nodes) == 1 else None,
            shards=tuple(dict.fromkeys(one.shard for one, _ in group)),
            object=table,
            example=first.example,
            shard=first.shard,
            other=first.other,
            more=f"; {count} rows in all" if count > 1 else "",
        )
    yield from _years_left(view)
    if view.deep and view.seen:
        compared = frozenset[str]().union(*(one.compared for one in view.seen.values()))
        for table, column in keys.of_cluster(view.topology, view.migrations).items():
            if table not in compared:
                yield RULES.finding("key_unread", object=f"{table}.{column}", table=table)


def _years_left(view: View[Seen]) -> Iterator[Finding]:
    layout = Layout.of(view.topology.id)
    now_ms = max((seen.now_ms for seen in view.seen.values()), default=layout.epoch_ms)
    if layout.last_ms - now_ms < FEW_YEARS * 365.25 * 86_400_000:
        yield RULES.finding("years_left", object="id layout", end=times.render(layout.last_ms))


_HIGHEST = (1 << 63) - 1


def _scan(
    place: Place, ids: Mapping[Relation, str], moment: _Moment, odd: list[Odd]
) -> frozenset[str]:
    """Read all rows of the tables with these id columns, and of those whose key is known.

    Adds to `odd`. Gives the tables whose keys it compared. Raises what reading the migrations and
    their key columns raises.
    """
    columns = keys.of_cluster(place.topology, place.migrations)
    named = catalog.read_keyed(place.connection, list(place.shards), columns)
    keyed = [one for one in named if one.present and one.integer]
    # A partitioned table's rows are its partitions'.
    key_of = {(one.schema, one.name): one for one in keyed if one.kind != "p"}
    homes = dict.fromkeys([*ids, *key_of])
    reading = Scan(place.connection, place.node.name, "reading ids", homes, place.progress)
    for home in homes:
        key = key_of.get(home)
        shard = place.shards[home[0] if key is None else key.home]
        column = None if key is None else key.column
        values = _values(place.topology, moment, shard, ids.get(home), column)
        found: dict[Code, tuple[int, int, int]] = {}
        try:
            odd_row = QUERIES["odd_row"].format(**values)
            reading.read(home, odd_row, partial(_judge_part, place, home, values, found))
        except (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName):
            continue  # it was there a moment ago
        except errors.LockNotAvailable:
            odd.append(Odd(shard, home[1], "locked"))
        else:
            odd += [
                Odd(shard, home[1], code, example, other, count)
                for code, (count, example, other) in found.items()
            ]
    return frozenset(one.named for one in keyed)


def _values(
    topology: Topology, moment: _Moment, shard: ShardId, id_: str | None, key: str | None
) -> dict[str, sql.Composable]:
    """Give what the statements about one table have in them; one of its two columns may be None."""
    layout, none = Layout.of(topology.id), sql.SQL("NULL::bigint")
    column = none if key is None else sql.SQL("t.{}").format(sql.Identifier(key))
    is_id = topology.key_rule == "id"
    return {
        "id": none if id_ is None else sql.SQL("t.{}").format(sql.Identifier(id_)),
        "key": column + sql.SQL("::bigint"),
        "belongs": none if key is None else belongs(topology, column, is_id=is_id),
        "shard": sql.Literal(shard),
        "limit": sql.Literal(moment.limit(layout)),
        "sequence_bits": sql.Literal(layout.sequence_bits),
        "max_shard": sql.Literal(layout.max_shard),
        "sign_and_shard": sql.Literal(layout.max_shard | 1 << 62),  # the sign is shifted, too
    }


def _judge_part(
    place: Place,
    home: Relation,
    values: Mapping[str, sql.Composable],
    found: dict[Code, tuple[int, int, int]],
    part: sql.Composable,
) -> None:
    """Add the odd rows of a part of a table: their number, an example and its shard."""
    statement = QUERIES["judged_rows"].format(**values, table=sql.Identifier(*home), part=part)
    for code, count, example, other in place.connection.execute(statement):
        before, *first = found.get(code, (0, example, other))
        found[code] = (before + count, *first)


CHECK = Check(
    RULES, "every id was generated by the shard that holds it, and not in the future", judge, look
)
