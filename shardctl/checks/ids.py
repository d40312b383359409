"""Ids that the shard which holds them cannot have made; and how long the layout lasts."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

import psycopg
from psycopg import errors, sql

from shardctl.checks.check import ERROR, NOTE, QUERIES, WARNING, Check, Rule, Rules, Severity
from shardctl.checks.scan import Scan, belongs
from shardctl.ids import generator, times
from shardctl.ids.layout import Layout
from shardctl.postgres import catalog, patient, queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import keys, lock
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.checks.scan import Relation
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName


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
            "other rows or give them new ids; `shardctl verify --check ids --deep` finds all of "
            "them",
        ),
        "not_generated": Rule(
            ERROR,
            f"{_ID}{{more}}",
            "ids that next_id() has made: positive, and older than the node's clock",
            "check the id's time with `shardctl decode-id ID`; if a clock was wrong, correct it; "
            "otherwise give the rows new ids from next_id() of their shard",
        ),
        "duplicate": Rule(
            ERROR,
            f"{_ID} and in shard {{other}}{{more}}",
            "every id in only one shard",
            "compare both rows; if they are equal, delete the one that `shardctl rows misplaced` "
            "lists",
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
            "wait until the session that alters the tables ends, then run `shardctl verify --check "
            "ids` again",
        ),
        "key_unread": Rule(
            # A migration's line stays behind when its table is dropped or renamed.
            WARNING + NOTE,
            "{actual}: --deep did not compare it",
            "the integer key column that a migration or the topology names",
            "name the right column in a new migration, `-- shardctl: key {table}.COLUMN`, or in "
            "`database.keys`; `shardctl rows misplaced --table {table}` compares keys of every "
            "kind",
        ),
        "check_not_valid": Rule(
            WARNING,
            f"constraint {keys.CHECK} is NOT VALID: existing rows were not checked",
            "a validated constraint",
            "run `shardctl migrate`: it validates the constraint, or names the shards with rows "
            "of other shards",
        ),
        "years_left": Rule(
            WARNING,
            "ids last until {end}",
            f"at least {FEW_YEARS} years",
            "plan a new cluster with another `id:` in its topology: it cannot be changed in this "
            "cluster",
        ),
    },
)


Code = Literal["not_generated", "duplicate", "other_shard", "other_key", "no_key", "locked"]

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
    keyed: Mapping[str, bool | None] = field(default_factory=dict)
    """Whether the key is an integer, of each table with a named key; None: it has no such one."""
    unvalidated: tuple[tuple[ShardId, str], ...] = ()
    """Tables whose CHECK of the key is not validated."""


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
    keyed: Mapping[str, bool | None] = {}
    if place.deep:
        keyed = _scan(place, ids, moment, odd)
    else:
        for chunk in patient.chunks(ids, CHUNK):
            odd += _ends(place, {table: ids[table] for table in chunk}, moment)
    unvalidated = catalog.read_unvalidated(place.connection, keys.CHECK, list(place.shards))
    return Seen(
        moment.now_ms,
        tuple(odd),
        keyed,
        tuple((place.shards[schema], table) for schema, table in unvalidated),
    )


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
    yield from _unvalidated(view)
    if view.deep and view.seen:
        seen = [one.keyed for one in view.seen.values()]
        keyed = {table: whole for of in seen for table, whole in of.items() if whole is not None}
        named = {*view.topology.database.keys, *(table for of in seen for table in of)}
        for table, column in keys.of_cluster(view.topology, view.migrations).items():
            if not keyed.get(table):
                absent = table not in keyed
                yield RULES.finding(
                    "key_unread",
                    Severity.warning if absent and table in named else Severity.note,
                    object=f"{table}.{column}",
                    actual="no shard has this column" if absent else "it is not an integer",
                    table=table,
                )


def _unvalidated(view: View[Seen]) -> Iterator[Finding]:
    """Find CHECKs of the key that rows from before have not passed, table by table."""
    tables: dict[str, list[ShardId]] = {}
    for seen in view.seen.values():
        for shard, table in seen.unvalidated:
            tables.setdefault(table, []).append(shard)
    for table, shards in sorted(tables.items()):
        yield RULES.finding("check_not_valid", shards=sorted(shards), object=table)


def _years_left(view: View[Seen]) -> Iterator[Finding]:
    layout = Layout.of(view.topology.id)
    now_ms = max((seen.now_ms for seen in view.seen.values()), default=layout.epoch_ms)
    if layout.years_left(now_ms) < FEW_YEARS:
        yield RULES.finding("years_left", object="id layout", end=times.render(layout.last_ms))


BATCH = 10_000
"""Misplaced ids that are looked up at a time."""

_HIGHEST = (1 << 63) - 1


def _scan(
    place: Place, ids: Mapping[Relation, str], moment: _Moment, odd: list[Odd]
) -> dict[str, bool | None]:
    """Read all rows of the tables with these id columns, and of those whose key is known.

    Adds to `odd`. Gives the tables with a named key, and whether it is an integer; None where its
    column is missing. Raises what reading the migrations and their key columns raises.
    """
    columns = keys.of_cluster(place.topology, place.migrations)
    named = catalog.read_keyed(place.connection, list(place.shards), columns)
    keyed = [one for one in named if one.present]
    # A partitioned table's rows are its partitions'.
    key_of = {(k.schema, k.name): k for k in keyed if k.integer and k.kind != "p"}
    homes = dict.fromkeys([*ids, *key_of])
    reading = Scan(place.connection, place.node.name, "reading ids", homes, place.progress)
    with ExitStack() as sessions:
        claimed = _Claimed(place, sessions)
        for home in homes:
            key = key_of.get(home)
            shard = place.shards[home[0] if key is None else key.home]
            column = None if key is None else key.column
            judge = _Judge(place, claimed, moment, shard, *home, ids.get(home), column)
            try:
                reading.read(home, judge.odd_rows(), judge.part)
            except (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName):
                continue  # it was there a moment ago
            except errors.LockNotAvailable:
                odd.append(Odd(shard, home[1], "locked"))
            else:
                odd += judge.odd()
    missing = dict.fromkeys((one.named for one in named), None)
    return missing | {one.named: one.integer for one in keyed}


@dataclass(slots=True)
class _Judge:
    """What is odd in one table, by kind; `id` or `key` may be None, not both."""

    place: Place
    claimed: _Claimed
    moment: _Moment
    shard: ShardId
    schema: str
    table: str
    id: str | None
    key: str | None
    found: dict[Code, tuple[int, int, int]] = field(default_factory=dict)
    """The number of rows, an example and its shard."""

    def _values(self) -> dict[str, sql.Composable]:
        topology, layout = self.place.topology, Layout.of(self.place.topology.id)
        none = sql.SQL("NULL::bigint")
        key = None if self.key is None else sql.SQL("t.{}").format(sql.Identifier(self.key))
        is_id = topology.key_rule == "id"
        return {
            "id": none if self.id is None else sql.SQL("t.{}").format(sql.Identifier(self.id)),
            "key": none if key is None else key + sql.SQL("::bigint"),
            "belongs": none if key is None else belongs(topology, key, is_id=is_id),
            "shard": sql.Literal(self.shard),
            "limit": sql.Literal(self.moment.limit(layout)),
            "sequence_bits": sql.Literal(layout.sequence_bits),
            "max_shard": sql.Literal(layout.max_shard),
            "sign_and_shard": sql.Literal(layout.max_shard | 1 << 62),  # the sign is shifted, too
        }

    def odd_rows(self) -> sql.Composed:
        """Compose what holds for a row that is odd."""
        chosen = [("odd_id", self.id), ("odd_key", self.key)]
        chosen += [("no_key", self.key)] if self.place.topology.key_rule == "id" else []
        odd = [QUERIES[name].format(**self._values()) for name, column in chosen if column]
        return sql.SQL(" OR ").join(odd)

    def part(self, part: sql.Composable) -> None:
        """Judge the odd rows of a part of the table."""
        table = sql.Identifier(self.schema, self.table)
        statement = QUERIES["judged_rows"].format(**self._values(), table=table, part=part)
        for code, shard, numbers in self.place.connection.execute(statement):
            twice: set[int] = set()
            if code == "other_shard":
                twice = self.claimed.present(self, shard, numbers)
                self._add("duplicate", [one for one in numbers if one in twice], shard)
            self._add(code, [one for one in numbers if one not in twice], shard)

    def _add(self, code: Code, numbers: Sequence[int], shard: int | None) -> None:
        if numbers:
            other = self.shard if shard is None else shard
            count, example, other = self.found.get(code, (0, numbers[0], other))
            self.found[code] = (count + len(numbers), example, other)

    def odd(self) -> list[Odd]:
        """Give what was found."""
        return [
            Odd(self.shard, self.table, code, example, other, count)
            for code, (count, example, other) in self.found.items()
        ]


class _Claimed:
    """Looks ids up in the shards that they claim, over sessions of its own."""

    def __init__(self, place: Place, sessions: ExitStack) -> None:
        self._place = place
        self._sessions = sessions
        self._open: dict[NodeName, Connection | None] = {}
        self._owners = place.topology.owners()

    def present(self, source: _Judge, shard: int, numbers: Sequence[int]) -> set[int]:
        """Return which of these ids the table of that name in `shard` holds.

        None of them where it cannot be asked: its node's own findings explain why.
        """
        owner = self._owners.get(ShardId(shard))
        session = None if owner is None else self._session(owner)
        if session is None or source.id is None:
            return set()
        found: set[int] = set()
        for few in patient.chunks(numbers, BATCH):
            statement = QUERIES["present_ids"].format(
                id=sql.Identifier(source.id),
                table=sql.Identifier(self._place.topology.schema(ShardId(shard)), source.table),
                wanted=sql.Literal(few),
            )
            try:
                found.update(number for (number,) in session.execute(statement))
            except psycopg.Error:
                return set()
        return found

    def _session(self, node: NodeName) -> Connection | None:
        if node not in self._open:
            topology = self._place.topology
            self._open[node] = None
            with suppress(NodeUnavailable):
                session = connect(
                    topology.nodes[node],
                    topology.database,
                    purpose=lock.purpose("verify"),
                    autocommit=True,
                )
                self._open[node] = self._sessions.enter_context(session)
                self._sessions.enter_context(self._place.running.statement(session))
                session.execute("SET default_transaction_read_only TO on")
                session.execute("SET lock_timeout TO '1s'")
                catalog.read_tables_only(session)
        return self._open[node]


CHECK = Check(
    RULES, "every id was generated by the shard that holds it, and not in the future", judge, look
)
