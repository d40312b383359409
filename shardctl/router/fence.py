"""After the fence's error: whether a shard has moved, and the newest map on the nodes.

A move renames the shard's schema on its source node. A statement there then fails with 42P01
for a table, 3F000 for a schema, with nothing written. A table that the application never created
gives the same codes, so the node is asked whether the schema exists.

A node to which the shard is about to come back has a copy under the schema's own name, closed
until the cutover: without USAGE, a statement there fails with 42501. Roles get that for other
reasons, too, so the node is asked whether this one may use the schema.
"""

from __future__ import annotations

import time
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from shardctl.libpq import reason_of
from shardctl.router.errors import AnotherCluster, MapUnread, MapWentBack, NoConnection
from shardctl.router.refusals import outwaited, pauses
from shardctl.router.requests import Alone, Answer, Ask, Execute, First, Wait
from shardctl.state import map as maps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shardctl.router.known import Known
    from shardctl.router.requests import Plan
    from shardctl.state.map import NodeMap
    from shardctl.topology.model import NodeName, ShardId

ERRORS = (errors.UndefinedTable, errors.InvalidSchemaName, errors.InsufficientPrivilege)
"""42P01, 3F000 and 42501."""
IN_TRANSACTION = (*ERRORS, errors.UndefinedFunction, errors.UndefinedObject)
"""And what unqualified names of other things give, once the schema is not on the path any more."""

_STANDING = (
    b"SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname = ANY (%s)"
    b" AND pg_catalog.has_schema_privilege(oid, 'USAGE')"
)
_FRESH_S = 0.01
"""How old another caller's answer may be to be used again."""
_ASK_S = 2.0
"""The least time for a node to answer; a node that hangs delays callers no longer than this."""


class Look(Enum):
    """The result of searching for shards that a statement did not find."""

    STANDS = auto()
    """Their schemas exist: something else is missing, or the fence was just removed."""
    SETTLED = auto()
    """They were fenced, and each is on a node now: another one, or the same."""
    AWAY = auto()
    """One is still fenced on every node after the router's patience."""


def look(known: Known, node: NodeName, shards: Collection[ShardId]) -> Plan[Look]:
    """Find out where shards are that a statement on `node` did not find.

    While a schema is fenced and no map names its new node, a move is at its cutover: the map is
    read again, and the node asked again (the cutover may be undone), for as long as the router's
    patience.
    """
    deadline = time.monotonic() + known.patience_s
    here = known.still(node, shards)  # another caller may have read the map in between
    away = (yield from _fenced(known, node, here, deadline)) if here else []
    if not away:
        return Look.STANDS if len(here) == len(shards) else Look.SETTLED
    waits = pauses()
    while True:
        yield Alone(_newest(known, node, away, time.monotonic()))
        away = known.still(node, away)
        if away:
            away = yield from _fenced(known, node, away, deadline)
        if not away:
            return Look.SETTLED
        left = deadline - time.monotonic()
        if left <= 0:
            return Look.AWAY
        yield Wait(min(next(waits), left))


def met(error: BaseException | None) -> bool:
    """Return whether a transaction's error, or a cause of it, can be the fence's."""
    while error is not None:
        if isinstance(error, IN_TRANSACTION):
            return True
        if isinstance(error, BaseExceptionGroup):  # of a TaskGroup
            return any(map(met, error.exceptions))
        error = error.__cause__  # SQLAlchemy and Django raise errors of their own from psycopg's
    return False


def reread(known: Known) -> Plan[None]:
    """Read the map again; raises MapUnread where no node returns it.

    Raises MapWentBack where the newest map of all nodes is older than the known one.
    """
    outcomes = yield from _ask(known, known.owning(), newer_than=None)
    versions = [one.map.version for one in outcomes if isinstance(one, maps.NodeMap)]
    if not versions:
        raise MapUnread(reasons(outcomes))
    # A node that was away while shards moved between others has an older map.
    everyone = len(versions) == len(outcomes)
    if everyone and max(versions) < known.map.version:
        raise MapWentBack(known.map.version, max(versions))


def reported_by(conninfo: str) -> Plan[NodeMap | None]:
    """Ask one connection string for the map; None where init has not finished."""
    answer: Answer = yield Ask(conninfo, maps.READ)
    return maps.of_row(answer.rows[0]) if answer.rows else None


def reasons(outcomes: Iterable[Any]) -> list[str]:
    """Give the reason of each node that did not return the map."""
    return [
        reason_of(one)
        if isinstance(one, psycopg.Error)
        else str(one or "`shardctl init` has not finished")
        for one in outcomes
    ]


def _fenced(
    known: Known, node: NodeName, shards: Collection[ShardId], deadline: float
) -> Plan[list[ShardId]]:
    """Give the shards whose schemas are missing or closed on a node; all, without an answer."""
    schemas = {known.schema(shard): shard for shard in shards}
    until = max(deadline, time.monotonic() + _ASK_S)
    try:
        answer: Answer = yield Execute(node, _STANDING, [list(schemas)], until=until)
    except (psycopg.OperationalError, NoConnection, TimeoutError):
        # It may be gone since the shards have moved; then a map names their node.
        return list(shards)
    standing = {schema for (schema,) in answer.rows}
    return [shard for schema, shard in schemas.items() if schema not in standing]


def _newest(known: Known, node: NodeName, shards: Collection[ShardId], came: float) -> Plan[None]:
    """Read the map, unless another caller just did, or found where these shards of `node` are.

    `came` is when this caller asked.
    """
    if known.asked_at > came - _FRESH_S or not known.still(node, shards):
        return
    known.asked_at = time.monotonic()
    version = known.map.version
    yield from _ask(known, known.owning(), newer_than=version)
    if known.map.version != version:
        return
    # The target owned nothing until now. It is asked last: where no server listens yet, a
    # pooler would remember the failed login, and make clients wait.
    asked = set(known.others())
    if asked:
        over = _over_meanwhile(known, node, shards, asked)
        yield from _ask(known, sorted(asked), newer_than=version, asked=asked, meanwhile=[over])


def _over_meanwhile(
    known: Known, node: NodeName, shards: Collection[ShardId], asked: Collection[NodeName]
) -> Plan[bool]:
    """Watch, while nodes of `asked` have not answered, whether the shards' cutover ends.

    A spare node that is not running may never answer, and another node may be the target.
    """
    version = known.map.version
    until = time.monotonic() + _ASK_S
    waits = pauses()
    while asked and time.monotonic() < until:
        yield Wait(next(waits))
        known.asked_at = time.monotonic()
        yield from _ask(known, known.owning(), newer_than=version)
        if known.map.version != version or not (yield from _fenced(known, node, shards, until)):
            return True
    return False


def _ask(
    known: Known,
    nodes: Sequence[NodeName],
    *,
    newer_than: int | None,
    asked: set[NodeName] | None = None,
    meanwhile: Sequence[Plan[bool]] = (),
) -> Plan[list[Any]]:
    """Ask nodes for the map, all at once, until one returns a newer map; keep the newest.

    A plan of `meanwhile` that returns True ends it, too. Nodes that have answered leave `asked`,
    and the last of them ends it.
    """

    def enough(reported: object) -> bool:
        newer = (
            newer_than is not None
            and isinstance(reported, maps.NodeMap)
            and reported.map.version > newer_than
        )
        return newer or reported is True or (asked is not None and not asked)

    if newer_than is None:  # it is not asked again
        until = time.monotonic() + _ASK_S
        plans = [outwaited(known, partial(_of_node, known, node), until) for node in nodes]
    else:
        plans = [_of_node(known, node, asked=asked) for node in nodes]
    outcomes: list[Any] = yield First([*plans, *meanwhile], enough, _ASK_S)
    for one in outcomes:
        if isinstance(one, AnotherCluster):
            raise one
        if isinstance(one, maps.NodeMap):
            known.adopt(one.map)
    return outcomes


def _of_node(
    known: Known, node: NodeName, _: float | None = None, *, asked: set[NodeName] | None = None
) -> Plan[NodeMap | None]:
    """Ask a node; None without an answer, or if it is a clone, which has its source's name."""
    try:
        reported: NodeMap | None = yield from reported_by(known.places.asking(node))
    finally:
        if asked is not None:
            asked.discard(node)
    if reported is None or reported.node != node:
        return None
    known.require_same(reported)
    return reported
