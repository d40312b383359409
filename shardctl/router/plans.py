"""Plans of statements on one shard, and of rows by their ids on many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from shardctl.router import fence, idents, places, refusals, statements
from shardctl.router.errors import MapUnread, NothingReturned, ShardMoved, WritesUnseen
from shardctl.router.fence import Look
from shardctl.router.requests import Alone, Begin, Execute, Hold, On, Release, Together
from shardctl.topology.keys import shard_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.router.known import Known
    from shardctl.router.requests import Answer, Parameters, Plan, Row
    from shardctl.router.statements import Names, Order, Term, Where
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName, ShardId

Opened = tuple["ShardId", Any]
"""A shard with an open transaction, and the held connection of that."""

_CHANGING = (
    b"SELECT FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_class AS c ON c.oid = l.relation"
    b" WHERE l.pid = pg_catalog.pg_backend_pid() AND c.relkind IN ('r', 'p') AND l.mode IN"
    b" ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
    b" LIMIT 1"
)
"""Not what SELECT ... FOR UPDATE takes: it changes nothing that others read."""
SHARDS_A_STATEMENT = 256
"""Each takes locks for its table and indexes; a server has a few thousand locks."""


class Source(NamedTuple):
    """Where the first map comes from, where there is no topology."""

    keywords: Mapping[str, Any]
    nodes: Mapping[str, str]
    given: Mapping[str, Any]
    """The keywords for all nodes; they override the connection strings."""


def begin(known: Known, source: Source | None) -> Plan[None]:
    """Read the first map, unless that was done; raises MapUnread, and psycopg's errors."""
    if known.found is None and source is not None:
        yield Alone(_begin(known, source))


def select(
    known: Known,
    fields: Names,
    table: str,
    shard_key: Key,
    where: Where | None,
    parameters: Parameters,
    order_by: str | Order | Sequence[str | Order] | None,
    limit: int | None,
) -> Plan[list[Row]]:
    """Read rows of a shard."""
    shard = known.shard_of(shard_key)
    statement = statements.select(
        known.schemas[shard],
        table,
        statements.terms(fields),
        statements.condition(where, parameters),
        statements.orders(order_by),
        statements.number(limit),
    )
    answer = yield from _on_shard(known, shard, statement, parameters)
    return answer.rows


def insert(
    known: Known, table: str, shard_key: Key, values: Mapping[str, Any], returning: Names | None
) -> Plan[Any]:
    """Write a row; the result is what is to be returned: a value, a row, or None.

    Raises NothingReturned where something is to be returned, and a trigger has left the row out.
    """
    shard = known.shard_of(shard_key)
    back: tuple[Term, ...] = () if returning is None else statements.terms(returning)
    statement = statements.insert(known.schemas[shard], table, tuple(values), back)
    answer = yield from _on_shard(known, shard, statement, tuple(values.values()))
    if not back:
        return None
    if not answer.rows:
        raise NothingReturned(table, shard)
    row = answer.rows[0]
    return row[0] if isinstance(returning, str) else row


def update(
    known: Known,
    table: str,
    shard_key: Key,
    values: Mapping[str, Any],
    where: Where,
    parameters: Parameters,
) -> Plan[int]:
    """Change rows; the result is how many."""
    shard = known.shard_of(shard_key)
    named = hasattr(parameters, "keys")
    statement = statements.update(
        known.schemas[shard],
        table,
        tuple(values),
        statements.condition(where, parameters) or "",
        named,
    )
    given: Parameters = (*values.values(), *(parameters or ()))
    if named:
        mine = {statements.assigned(n): value for n, value in enumerate(values.values())}
        given = {**parameters, **mine}  # type: ignore[dict-item]  # it has keys
    answer = yield from _on_shard(known, shard, statement, given)
    return answer.touched


def delete(
    known: Known, table: str, shard_key: Key, where: Where, parameters: Parameters
) -> Plan[int]:
    """Remove rows; the result is how many."""
    shard = known.shard_of(shard_key)
    text = statements.condition(where, parameters) or ""
    statement = statements.delete(known.schemas[shard], table, text)
    answer = yield from _on_shard(known, shard, statement, parameters)
    return answer.touched


def require_seen(opened: Sequence[Opened], asked: Collection[int]) -> Plan[None]:
    """See that open transactions have changed none of the shards asked; raises WritesUnseen.

    `opened` are the caller's own.
    """
    for shard, held in opened:
        connection = held.connection
        if shard in asked and connection.info.transaction_status is TransactionStatus.INTRANS:
            chosen, connection.row_factory = connection.row_factory, tuple_row
            try:
                answer: Answer = yield On(held, _CHANGING)
            finally:
                connection.row_factory = chosen
            if answer.rows:
                raise WritesUnseen(shard)


def transaction(known: Known, node: NodeName) -> Plan[tuple[Any, Any]]:
    """Begin a transaction on a node; the result is a connection, and psycopg's transaction."""

    def begun(seconds: float | None) -> Plan[tuple[Any, Any]]:
        held = yield Hold(node, seconds)
        try:
            return held.connection, (yield Begin(held))
        except psycopg.Error:
            yield Release(held)
            raise

    return (yield from refusals.outwaited(known, begun))


def after_transaction(known: Known, shard: ShardId, node: NodeName) -> Plan[None]:
    """Look whether a transaction on `node` met the fence; raises ShardMoved if so."""
    if (yield from fence.look(known, node, [shard])) is Look.SETTLED:
        raise ShardMoved(shard, node, known.owner(shard))


def fetch_many(
    known: Known,
    fields: Names,
    table: str,
    wanted: Sequence[tuple[Key, Any]],
    id_field: str,
    width: int,
    opened: Sequence[Opened] = (),
) -> Plan[list[Row | None]]:
    """Read rows by key and id; the result has a row or None for each, in the order asked for.

    Raises IdsUnlike, WritesUnseen.
    """
    terms = statements.terms(fields)
    ids: dict[ShardId, dict[Any, None]] = {}
    count = len(known.map.owners)
    asked = [(shard_of(key, count), number) for key, number in wanted]
    for shard, number in asked:
        ids.setdefault(shard, {})[number] = None
    yield from require_seen(opened, ids)
    plans = [
        _fetch(known, node, terms, table, {s: ids[s] for s in part}, id_field, again=True)
        for node, shards in known.by_node(ids).items()
        for part in parts(shards)
    ]
    outcomes = yield Together(plans, width)
    found: dict[tuple[ShardId, Any], Row] = {}
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found |= outcome
    return [found.get(one) for one in asked]


def parts(shards: Sequence[ShardId]) -> list[Sequence[ShardId]]:
    """Split a node's shards into those of one statement each."""
    size = SHARDS_A_STATEMENT
    return [shards[first : first + size] for first in range(0, len(shards), size)]


def _begin(known: Known, source: Source) -> Plan[None]:
    if known.found is not None:
        return
    conninfo = places.asked(source.keywords)
    try:
        reported = yield from refusals.outwaited(known, lambda _: fence.reported_by(conninfo))
    except psycopg.Error as error:
        raise MapUnread(fence.reasons([error])) from error
    if reported is None:
        raise MapUnread(fence.reasons([reported]))
    dbname = str(source.keywords.get("dbname") or reported.database)
    if source.nodes:
        reached = places.of_listed(source.keywords, source.given, reported, source.nodes)
    else:
        reached = places.of_reported(source.keywords, reported, dbname)
    known.begin(reported.map, reached)


def _on_shard(
    known: Known, shard: ShardId, statement: bytes, parameters: Parameters
) -> Plan[Answer]:
    """Run a statement on its shard's node; once more if the shard was missing there."""
    given = () if parameters is None else parameters
    node = known.owner(shard)
    try:
        answer = yield from refusals.execute(known, Execute(node, statement, given))
    except fence.ERRORS:
        # The statement was refused, so that it may be sent again: nothing was written.
        if (yield from fence.look(known, node, [shard])) is Look.AWAY:
            raise
        again = Execute(known.owner(shard), statement, given)
        answer = yield from refusals.execute(known, again)
        known.count_repeated()
    return answer


def _fetch(
    known: Known,
    node: NodeName,
    terms: tuple[Term, ...],
    table: str,
    ids: Mapping[ShardId, Mapping[Any, None]],
    id_field: str,
    *,
    again: bool,
) -> Plan[dict[tuple[ShardId, Any], Row]]:
    """Read from one node; the result has rows by shard and id."""
    shards = list(ids)
    schemas = [known.schemas[shard] for shard in shards]
    statement = statements.fetch(schemas, table, terms, id_field)
    try:
        given = [list(numbers) for numbers in ids.values()]
        asking = Execute(node, statement, given, types=True)
        answer = yield from refusals.execute(known, asking)
    except fence.ERRORS:
        if not again or (yield from fence.look(known, node, shards)) is Look.AWAY:
            raise
    else:
        found = {(shards[row[0]], row[1]): row[2:] for row in answer.rows}
        idents.require_alike(id_field, answer.types[1], ids, found)
        return found
    found = {}
    for owner, part in known.by_node(shards).items():
        there = {shard: ids[shard] for shard in part}
        found |= yield from _fetch(known, owner, terms, table, there, id_field, again=False)
    known.count_repeated()
    return found
