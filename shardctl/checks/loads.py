"""How large and how busy every shard is: for lists, and for plans that balance nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.checks import status_look
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

    `size_bytes` adds up the main files of tables, indexes, sequences and TOAST, and `rows` is an
    estimate of ANALYZE. PostgreSQL counts transactions by database only, so the load of a shard is
    what its tables report: `writes_per_s` are the rows that were inserted, updated and deleted,
    committed or not, and `scans_per_s` the scans of tables and indexes that began. `last_move` is
    when a move brought the shard to its node.
    """

    shard: ShardId
    schema: str
    node: NodeName
    size_bytes: int | None = None
    rows: int | None = None
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
        return {
            "shard": self.shard,
            "schema": self.schema,
            "node": self.node,
            "size_bytes": self.size_bytes,
            "rows_estimate": self.rows,
            "writes_per_s": _rounded(self.writes_per_s),
            "scans_per_s": _rounded(self.scans_per_s),
            "last_move": ledger.written(self.last_move),
        }


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


class _Seen(NamedTuple):
    """What a node gave, by schema; `moved` by shard."""

    measured: dict[str, tuple[int | None, int | None]]
    moved: dict[ShardId, datetime]
    before: dict[str, _Count]
    after: dict[str, _Count]


def measure(
    topology: Topology, *, sample_s: float, purpose: str, nodes: Iterable[Node] | None = None
) -> Loads:
    """Measure the shards of some nodes, by default of all, which are asked at the same time.

    Operations are counted twice, at least `sample_s` apart, and sizes are measured meanwhile; 0
    leaves load out. Servers from 15 on add up a session's operations at
    most once a second, so a shorter sample is coarse.
    """
    chosen = [one for one in (topology.nodes.values() if nodes is None else nodes) if one.shards]

    def look(session: Connection, node: Node) -> _Seen:
        status_look.only_read(session)
        schemas = [topology.schema(shard) for shard in node.shards]
        before = _counts(session, schemas) if sample_s > 0 else {}
        until = time.monotonic() + sample_s
        measured = status_look.read_schemas(session, schemas)
        moved = _moved(session, node)
        status_look.wait(until)
        return _Seen(measured, moved, before, _counts(session, schemas) if before else {})

    asked = observer.ask(topology, look, purpose=purpose, nodes=chosen, width=len(chosen))
    found, missing = [], []
    for node in chosen:
        one = asked.values.get(node.name)
        for shard in node.shards:
            schema = topology.schema(shard)
            if one is not None and schema not in one.measured:
                missing.append(shard)
            size, rows = one.measured.get(schema, (None, None)) if one else (None, None)
            rates = _rates(one.before.get(schema), one.after.get(schema)) if one else (None, None)
            moved = one.moved.get(shard) if one else None
            found.append(ShardLoad(shard, schema, node.name, size, rows, *rates, last_move=moved))
    found.sort(key=lambda load: load.shard)
    return Loads(tuple(found), tuple(sorted(missing)), asked.errors)


def _counts(session: Connection, schemas: list[str]) -> dict[str, _Count]:
    rows = session.execute(status_look.QUERIES["counters"], {"schemas": schemas})
    return {schema: _Count(*rest) for schema, *rest in rows}


def _moved(session: Connection, node: Node) -> dict[ShardId, datetime]:
    (readable,) = queries.one(session, status_look.QUERIES["readable"])
    given = {"node": node.name}
    return dict(session.execute(status_look.QUERIES["last_moves"], given)) if readable else {}


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
    return written / (after.at - before.at), scans / (after.at - before.at)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)
