"""Plans of statements and transactions in one shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from shardctl.router import fence, places, refusals, rows, statements
from shardctl.router.errors import MapUnread, NothingReturned, ShardMoved
from shardctl.router.fence import Look
from shardctl.router.requests import Alone, Execute, Hold, On, Release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.router.events import Span
    from shardctl.router.known import Known
    from shardctl.router.requests import Answer, Parameters, Plan
    from shardctl.router.rows import Factory
    from shardctl.router.statements import Names, Order, Term, Where
    from shardctl.topology.handles import NodeName, ShardId
    from shardctl.topology.keys import Key

SHARDS_A_STATEMENT = 256
"""Each takes locks for its table and indexes; a server has a few thousand locks."""


class Source(NamedTuple):
    """Where the first map comes from, where there is no topology."""

    keywords: Mapping[str, Any]
    nodes: Mapping[str, str]
    given: Mapping[str, Any]
    """The keywords for all nodes; they override the connection strings."""


class Asked(NamedTuple):
    """A statement of the application's in one shard."""

    call: str
    table: str
    statement: bytes
    parameters: Parameters
    factory: Factory | None
    reads: bool = False
    """Whether it changes nothing, so that it may be sent again."""


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
    factory: Factory | None = None,
) -> Plan[list[Any]]:
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
    made = factory or known.row_factory
    asked = Asked("select", table, statement, parameters, made, reads=True)
    return (yield from _on_shard(known, shard, asked)).rows


def insert(
    known: Known,
    table: str,
    shard_key: Key,
    values: Mapping[str, Any],
    returning: Names | None,
    factory: Factory | None = None,
) -> Plan[Any]:
    """Write a row; the result is what is to be returned: a value, a row, or None.

    Raises NothingReturned where something is to be returned, and a trigger has left the row out.
    """
    shard = known.shard_of(shard_key)
    back, factory = _returned(known, returning, factory)
    statement = statements.insert(known.schemas[shard], table, tuple(values), back)
    asked = Asked("insert", table, statement, tuple(values.values()), factory)
    answer = yield from _on_shard(known, shard, asked)
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
    returning: Names | None = None,
    factory: Factory | None = None,
) -> Plan[Any]:
    """Change rows; the result is how many, or what is to be returned of each."""
    shard = known.shard_of(shard_key)
    back, factory = _returned(known, returning, factory)
    named = hasattr(parameters, "keys")
    statement = statements.update(
        known.schemas[shard],
        table,
        tuple(values),
        statements.condition(where, parameters) or "",
        named,
        back,
    )
    given: Parameters = (*values.values(), *(parameters or ()))
    if named:
        mine = {statements.assigned(n): value for n, value in enumerate(values.values())}
        given = {**parameters, **mine}  # type: ignore[dict-item]  # it has keys
    answer = yield from _on_shard(known, shard, Asked("update", table, statement, given, factory))
    return shown(answer, returning)


def delete(
    known: Known,
    table: str,
    shard_key: Key,
    where: Where,
    parameters: Parameters,
    returning: Names | None = None,
    factory: Factory | None = None,
) -> Plan[Any]:
    """Remove rows; the result is how many, or what is to be returned of each."""
    shard = known.shard_of(shard_key)
    back, factory = _returned(known, returning, factory)
    text = statements.condition(where, parameters) or ""
    statement = statements.delete(known.schemas[shard], table, text, back)
    asked = Asked("delete", table, statement, parameters, factory)
    return shown((yield from _on_shard(known, shard, asked)), returning)


def shown(answer: Answer, returning: Names | None) -> Any:
    """Give how many rows a statement touched, or the values or rows that it returned."""
    if returning is None:
        return answer.touched
    return [row[0] for row in answer.rows] if isinstance(returning, str) else answer.rows


def transaction(known: Known, shard: ShardId, span: Span | None = None) -> Plan[Any]:
    """Begin a transaction in a shard; the result is what the face holds, with a connection."""
    node = known.owner(shard)
    path = statements.search_path(known.schema(shard))
    if span is not None:
        span.node = node

    def begun(seconds: float | None) -> Plan[Any]:
        held = yield Hold(node, seconds)
        try:
            yield On(held, b"BEGIN; " + path)
        except psycopg.Error:
            yield Release(held)
            raise
        return held

    held = yield from refusals.outwaited(known, begun, span=span)
    return held.lend(shard, node, path, known.row_factory)


def after_transaction(known: Known, shard: ShardId, node: NodeName) -> Plan[None]:
    """Look whether a transaction on `node` met the fence; raises ShardMoved if so."""
    if (yield from fence.look(known, node, [shard])) is Look.SETTLED:
        raise ShardMoved(shard, node, known.owner(shard))


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


def _returned(
    known: Known, returning: Names | None, factory: Factory | None
) -> tuple[tuple[Term, ...], Factory | None]:
    """Give the fields to return, and what makes rows of them; one field alone gives values."""
    if returning is None or isinstance(returning, str):
        return () if returning is None else statements.terms(returning), None
    return statements.terms(returning), factory or known.row_factory


def _on_shard(known: Known, shard: ShardId, asked: Asked) -> Plan[Answer]:
    """Run a statement on its shard's node; once more if the shard was missing there.

    The rows of the answer are those that the factory makes.
    """
    with known.span(asked.call, asked.table, (shard,)) as span:
        answer = yield from _sent(known, shard, asked, span)
    if asked.factory is None or not answer.types:
        return answer
    return answer._replace(rows=list(map(rows.maker(asked.factory, answer), answer.rows)))


def _sent(known: Known, shard: ShardId, asked: Asked, span: Span) -> Plan[Answer]:
    given = () if asked.parameters is None else asked.parameters
    types = asked.factory is not None
    send = refusals.read if asked.reads else refusals.execute
    node = span.node = known.owner(shard)
    try:
        request = Execute(node, asked.statement, given, types)
        answer = yield from send(known, request, span)
    except fence.ERRORS:
        # The statement was refused, so that it may be sent again: nothing was written.
        if (yield from fence.look(known, node, [shard])) is Look.AWAY:
            raise
        span.count()
        node = span.node = known.owner(shard)
        again = Execute(node, asked.statement, given, types)
        answer = yield from send(known, again, span)
        known.count_repeated()
    return answer
