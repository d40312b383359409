"""After a load: compares all live rows with what clients had acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import errors, sql

from shardctl.errors import ShardctlError
from shardctl.ids.layout import Layout
from shardctl.traffic import fleet
from shardctl.traffic.client_routes import QUERIES, TABLE
from shardctl.traffic.compare import Comparison, Row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from shardctl.topology.model import NodeName, ShardId, Topology
    from shardctl.traffic.compare import Verdict
    from shardctl.traffic.fleet import Fleet
    from shardctl.traffic.record import Record

_AT_ONCE = 5000


class FleetUnsettled(ShardctlError):
    """Shards that moved while their rows were read."""

    def __init__(self, node: NodeName) -> None:
        super().__init__(
            f"node {node}: shards moved while their rows were read",
            hint="run the load again after the move",
        )


def judge(topology: Topology, found: Fleet, records: Sequence[Record]) -> Verdict:
    """Compare all live rows with the acknowledged ones; raises NodeUnavailable, FleetUnsettled."""
    comparison = Comparison(records, Layout.of(topology.id))
    for name in found.nodes:
        for shard, row in _rows(topology, found, name, found.holding(name)):
            comparison.owned(shard, row)
    for name in found.nodes:
        others = found.nodes[name].live - found.holding(name)
        for shard, row in _rows(topology, found, name, others):
            comparison.elsewhere(shard, name, row)
    return comparison.verdict(found.unserved())


def _rows(
    topology: Topology, found: Fleet, name: NodeName, shards: Collection[ShardId]
) -> Iterator[tuple[ShardId, Row]]:
    """Yield the rows of the load's table in some shards of a node."""
    there = sorted(set(found.nodes[name].tables).intersection(shards))
    if not there:
        return
    with fleet.session(topology, topology.nodes[name]) as connection:
        try:
            for shard in there:
                of_shard = sql.Identifier(topology.schema(shard), TABLE)
                with connection.cursor(name="rows") as cursor:
                    cursor.itersize = _AT_ONCE
                    for row in cursor.execute(QUERIES["rows"].format(table=of_shard)):
                        yield shard, Row(*row)
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            raise FleetUnsettled(name) from error
