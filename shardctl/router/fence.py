"""After the fence's error: whether a shard has moved, and the newest map that a node tells.

A move renames the shard's schema on the node that it leaves. Whoever asks there then gets 42P01
for a table, 3F000 for a schema, with nothing written. The same codes tell of a table that the
application forgot to make, so the node is asked whether the schema stands.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from shardctl.libpq import reason_of
from shardctl.router.errors import AnotherCluster, MapUnread, MapWentBack
from shardctl.router.requests import Alone, Answer, Ask, Execute, First, Wait
from shardctl.state import map as maps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardctl.router.known import Known
    from shardctl.router.requests import Plan
    from shardctl.state.map import Told
    from shardctl.topology.model import NodeName, ShardId

ERRORS = (errors.UndefinedTable, errors.InvalidSchemaName)
"""42P01 and 3F000."""
IN_TRANSACTION = (*ERRORS, errors.UndefinedFunction, errors.UndefinedObject)
"""And what unqualified names of other things give, once the schema is not on the path any more."""

_STANDING = b"SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname = ANY (%s)"
_POLL_S = 0.02
_ASK_S = 2.0
"""How long all nodes together have for an answer; one that hangs holds nobody up for longer."""


def moved(known: Known, node: NodeName, shards: Collection[ShardId]) -> Plan[bool]:
    """Tell whether one of these shards has another owner than `node` by now.

    While the schema is away and no map says where it went, a move is at its cutover: the map is
    read again until it does, for as long as the router's patience.
    """
    deadline = time.monotonic() + known.patience_s
    if known.elsewhere(node, shards):  # somebody has read the map meanwhile
        return True
    schemas = {known.schema(shard): shard for shard in shards}
    answer: Answer = yield Execute(node, _STANDING, [list(schemas)])
    fenced = set(schemas) - {schema for (schema,) in answer.rows}
    if not fenced:
        return False
    away = {schemas[schema] for schema in fenced}
    found: bool = yield Alone(_await(known, node, away, deadline))
    return found


def reread(known: Known) -> Plan[None]:
    """Read the map anew; raises MapUnread where nobody tells it, and MapWentBack."""
    outcomes = yield from _ask(known, known.owning(), newer_than=None)
    versions = [one.map.version for one in outcomes if isinstance(one, maps.Told)]
    if not versions:
        raise MapUnread(reasons(outcomes))
    if max(versions) < known.map.version:
        raise MapWentBack(known.map.version, max(versions))


def told_by(conninfo: str) -> Plan[Told | None]:
    """Ask for the map where a connection string leads; None where it is not whole yet."""
    answer: Answer = yield Ask(conninfo, maps.READ)
    return maps.told(answer.rows[0]) if answer.rows else None


def reasons(outcomes: Iterable[Any]) -> list[str]:
    """Say of each that was asked for the map why it did not tell."""
    return [
        reason_of(one) if isinstance(one, psycopg.Error) else str(one or "init has not ended")
        for one in outcomes
    ]


def _await(
    known: Known, node: NodeName, shards: Collection[ShardId], deadline: float
) -> Plan[bool]:
    """Read the map again until it gives one of these shards to another node, or time is up."""
    while not known.elsewhere(node, shards):
        version = known.map.version
        owning = known.owning()
        yield from _ask(known, owning, newer_than=version)
        if known.map.version == version and (others := known.others()):
            # The target owned nothing until now. It is asked last: where nobody listens yet, a
            # pooler would remember the failed login, and let clients wait.
            yield from _ask(known, others, newer_than=version)
        if known.elsewhere(node, shards):
            break
        if time.monotonic() >= deadline:
            return False
        yield Wait(_POLL_S)
    return True


def _ask(known: Known, nodes: Sequence[NodeName], *, newer_than: int | None) -> Plan[list[Any]]:
    """Ask nodes for the map, all at once, until one tells a newer; keep the newest."""

    def newer(told: object) -> bool:
        return (
            newer_than is not None and isinstance(told, maps.Told) and told.map.version > newer_than
        )

    plans = [_of_node(known, node) for node in nodes]
    outcomes: list[Told | BaseException | None] = yield First(plans, newer, _ASK_S)
    for one in outcomes:
        if isinstance(one, AnotherCluster):
            raise one
        if isinstance(one, maps.Told):
            known.adopt(one.map)
    return outcomes


def _of_node(known: Known, node: NodeName) -> Plan[Told | None]:
    """Ask a node; None where it does not say, or is another: a clone tells its source's name."""
    told: Told | None = yield from told_by(known.places.asking(node))
    if told is None or told.node != node:
        return None
    known.require_same(told)
    return told
