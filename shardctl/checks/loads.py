"""How large and how busy every shard is: for lists, and for plans that balance nodes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.checks import status
from shardctl.postgres import queries
from shardctl.state import ledger, observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from shardctl.errors import ShardctlError
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard on the node that the topology gives it to; None is what could not be measured.

    `size_bytes` adds up the main files of tables, indexes, sequences and TOAST, and `rows_estimate`
    is ANALYZE's. PostgreSQL counts transactions by database only, so the load of a shard is
    what its tables report: `writes_per_s` are the rows that were inserted, updated and deleted,
    committed or not, and `scans_per_s` the scans of tables and indexes that began. `last_move` is
    when a move brought the shard to its node.
    """

    shard: ShardId
    schema: str
    node: NodeName
    size_bytes: int | None = None
    rows_estimate: int | None = None
    writes_per_s: float | None = None
    scans_per_s: float | None = None
    last_move: datetime | None = None

    @property
    def operations_per_s(self) -> float | None:
        """Rows written and scans begun a second, together: one number to compare shards by."""
        if self.writes_per_s is None or self.scans_per_s is None:
            return None
        return self.writes_per_s + self.scans_per_s

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return asdict(self) | {"last_move": ledger.written(self.last_move)}


@dataclass(frozen=True, slots=True)
class Loads:
    """All shards of the nodes that were asked, by number, and why some nodes do not answer.

    `missing` are shards without a schema on a node that did.
    """

    shards: tuple[ShardLoad, ...]
    missing: tuple[ShardId, ...]
    errors: Mapping[NodeName, ShardctlError]


class _Count(NamedTuple):
    """Counters of a schema at a moment of its server's clock, in seconds."""

    written: int
    scans: int
    at: float


def measure(
    topology: Topology, *, sample_s: float, purpose: str, nodes: Iterable[Node] | None = None
) -> Loads:
    """Measure the shards of some nodes, by default of all, which are asked at the same time.

    Operations are counted twice, at least `sample_s` apart, and sizes are measured meanwhile; 0
    leaves load out. Servers from 15 on add up a session's operations at
    most once a second, so a shorter sample is coarse.
    """
    chosen = [one for one in (topology.nodes.values() if nodes is None else nodes) if one.shards]

    def look(session: Connection, node: Node) -> list[ShardLoad]:
        status.only_read(session)
        shards = {topology.schema(shard): shard for shard in node.shards}
        before = _counts(session, list(shards)) if sample_s > 0 else {}
        until = time.monotonic() + sample_s
        measured = status.read_schemas(session, list(shards))
        moved = _moved(session, node)
        status.wait(until)
        after = _counts(session, list(shards)) if before else {}
        rates = {schema: _rates(before.get(schema), after.get(schema)) for schema in shards}
        return [
            ShardLoad(s, schema, node.name, *measured[schema], *rates[schema], moved.get(s))
            for schema, s in shards.items()
            if schema in measured
        ]

    asked = observer.ask(topology, look, purpose=purpose, nodes=chosen, width=len(chosen))
    found = {one.shard: one for loads in asked.values.values() for one in loads}
    shards = sorted((shard, node.name) for node in chosen for shard in node.shards)
    every = (found.get(s) or ShardLoad(s, topology.schema(s), node) for s, node in shards)
    missing = (s for s, node in shards if node in asked.values and s not in found)
    return Loads(tuple(every), tuple(missing), asked.errors)


def _counts(session: Connection, schemas: list[str]) -> dict[str, _Count]:
    rows = session.execute(status.QUERIES["counters"], {"schemas": schemas})
    return {schema: _Count(*rest) for schema, *rest in rows}


def _moved(session: Connection, node: Node) -> dict[ShardId, datetime]:
    (readable,) = queries.one(session, status.QUERIES["readable"])
    given = {"node": node.name}
    return dict(session.execute(status.QUERIES["last_moves"], given)) if readable else {}


def _rates(before: _Count | None, after: _Count | None) -> tuple[float | None, float | None]:
    """Give rows written and scans a second; None where they were reset, or a table dropped.

    >>> _rates(_Count(100, 7, 10.0), _Count(150, 7, 12.0)), _rates(_Count(1, 7, 10.0), None)
    ((25.0, 0.0), (None, None))
    """
    if before is None or after is None or after.at <= before.at:
        return None, None
    written, scans = after.written - before.written, after.scans - before.scans
    if written < 0 or scans < 0:
        return None, None
    elapsed = after.at - before.at
    return round(written / elapsed, 3), round(scans / elapsed, 3)
