"""The load's own table in every shard: creates it, finds it after a killed run, drops it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Refused
from shardctl.ids import generator
from shardctl.libpq import reason_of
from shardctl.postgres import patient
from shardctl.state import events, lock
from shardctl.topology import ranges
from shardctl.traffic import client_routes, fleet
from shardctl.traffic.client_routes import QUERIES, TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from shardctl.topology.model import Node, NodeName, ShardId, Topology
    from shardctl.traffic.fleet import Fleet, Seen

MARK = "Of `shardctl sandbox traffic`, which may drop it."
"""The comment on the table, by which a later run recognises it."""

_LOCK_CLASS = 0x5AAD7AF
_LOCKS = 28
"""Entries of the lock table per shard: 11 to drop an old table, 15 to create it (measured)."""
_LARGEST = 50
_LOCK_TIMEOUT = sql.SQL("SET LOCAL lock_timeout TO '5s'")
_WIDTH = 16


@contextmanager
def alone(topology: Topology, nodes: Iterable[NodeName]) -> Iterator[None]:
    """Hold the lock that keeps other loads from these nodes; raises load_running.

    It is not one of the nodes' locks, which a move takes: a load runs during moves.
    """
    with ExitStack() as stack:
        for name in nodes:
            node = topology.nodes[name]
            session = stack.enter_context(fleet.session(topology, node, autocommit=True))
            if (holder := lock.alone(session, _LOCK_CLASS)) is not None:
                who, since = holder
                when = f" since {since:%Y-%m-%d %H:%M:%S %Z}" if since else ""
                raise Refused(
                    "load_running",
                    f"node {name}: another load is running: {who}{when}",
                    hint="wait until it ends, or stop it",
                )
        yield


def require_free(topology: Topology, found: Fleet) -> None:
    """Check that no other table has the name; raises table_taken."""
    for name, seen in found.nodes.items():
        for shard, comment in seen.tables.items():
            if comment != MARK:
                taken = f"table {TABLE} in schema {topology.schema(shard)}"
                raise Refused(
                    "table_taken",
                    f"node {name}: {taken} was not created by `{client_routes.PURPOSE}`",
                    hint="rename it: the load needs a table of its own with that name",
                )


def make(topology: Topology, found: Fleet, shards: Collection[ShardId]) -> None:
    """Create the table in these shards, on their owners; raises table_taken and table_failed.

    Drops tables of earlier loads, wherever they are live.
    """
    require_free(topology, found)

    def work(node: Node) -> None:
        seen, ours = found.nodes[node.name], found.holding(node.name).intersection(shards)
        _run(topology, node, "make", sorted(ours))
        _run(topology, node, "drop", sorted(set(seen.tables) - ours))

    _everywhere(topology, found.nodes, work)


def drop(topology: Topology) -> list[NodeName]:
    """Drop every live table that a load created; return unreachable owners.

    Retired copies of shards are not changed: a move compares them, and prune drops them. Raises
    table_failed.
    """
    nodes = fleet.observe(topology)

    def work(node: Node) -> None:
        seen = nodes[node.name]
        ours = sorted(shard for shard, comment in seen.tables.items() if comment == MARK)
        _run(topology, node, "drop", ours)

    _everywhere(topology, nodes, work)
    owning = {owner for seen in nodes.values() for owner in seen.owners.values()}
    return [name for name, seen in nodes.items() if seen.error is not None and name in owning]


def _run(topology: Topology, node: Node, statement: str, shards: Sequence[ShardId]) -> None:
    """Run one statement in shards of a node, in transactions that fit its lock table."""
    if not shards:
        return
    with fleet.session(topology, node) as connection:
        try:
            size = min(_LARGEST, patient.lockable(connection) // _LOCKS)
            for part in patient.chunks(shards, size):
                script = [_statement(topology, statement, shard) for shard in part]
                connection.execute(_LOCK_TIMEOUT)
                connection.execute(sql.SQL("\n").join(script))
                connection.commit()
        except psycopg.Error as error:
            raise Refused(
                "table_failed",
                f"node {node.name}: table {TABLE}: {reason_of(error)}",
                hint="fix this, then run the load again: it drops or uses what this one left",
            ) from error
        done = "made" if statement == "make" else "dropped"
        events.record(connection, fleet.COMMAND, f"{TABLE} {done} in shards {ranges.of(shards)}")
        connection.commit()


def _statement(topology: Topology, name: str, shard: ShardId) -> sql.Composed:
    schema = topology.schema(shard)
    return QUERIES[name].format(
        table=sql.Identifier(schema, TABLE),
        next_id=sql.Identifier(schema, generator.WRAPPER),
        mark=sql.Literal(MARK),
        role=sql.Identifier(client_routes.role(topology)),
    )


def _everywhere(
    topology: Topology, nodes: Mapping[NodeName, Seen], work: Callable[[Node], None]
) -> None:
    """Call `work` for every usable node; raises table_failed, or Problems for several."""
    counting = [topology.nodes[name] for name, seen in nodes.items() if seen.refusal is None]
    fanout.collect(counting, work, width=_WIDTH).every()
