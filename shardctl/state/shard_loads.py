"""Size and load of every shard: a few questions to each node, however many shards it has."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from shardctl.errors import Refused, ShardctlError
from shardctl.postgres import queries
from shardctl.state import cluster, identity, observer
from shardctl.topology import ranges
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology

QUERIES = queries.load("shardctl.state", "shard_loads.sql")

_LOCK_TIMEOUT = "200ms"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard on a node whose own map gives the shard to it.

    None is what is unknown. `exists` is whether the schema does. `bytes` are those of tables,
    indexes, TOAST and sequences (None: a session holds or awaits a lock that the measuring would
    wait for). `rows` is an estimate. `move` and `moved` are the last move that gave the shard to
    this node, and its end. Rates are those of the sample: rows written, and scans of tables and
    indexes begun.
    """

    shard: ShardId
    schema: str
    node: NodeName
    exists: bool
    bytes: int | None
    rows: int | None
    move: str | None = None
    moved: datetime | None = None
    writes_per_s: float | None = None
    scans_per_s: float | None = None

    @property
    def tps(self) -> float | None:
        """Operations per second: rows written and scans begun; None without a sample."""
        if self.writes_per_s is None or self.scans_per_s is None:
            return None
        return self.writes_per_s + self.scans_per_s


@dataclass(frozen=True, slots=True)
class ShardLoads:
    """All shards of the nodes that could be asked, by their numbers, and the problems.

    `problems` are nodes that could not be asked or sampled, shards that two nodes claim (both are
    in `loads`) and shards that no node claims.
    """

    loads: tuple[ShardLoad, ...]
    problems: tuple[ShardctlError, ...] = ()


class Counters(NamedTuple):
    """What one shard has done so far."""

    writes: int
    scans: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of a node's shards at a moment of the monotonic clock, in seconds.

    `reset` names when the server last set counters to zero.
    """

    at: float
    reset: str | None
    counters: Mapping[ShardId, Counters]


@dataclass(frozen=True, slots=True)
class _Seen:
    loads: tuple[ShardLoad, ...]
    sample: Sample | None


def read(
    topology: Topology,
    *,
    purpose: str,
    sample_s: float | None = None,
    nodes: Iterable[Node] | None = None,
) -> ShardLoads:
    """Ask nodes in parallel for their shards, as their own maps have them; None asks all nodes.

    With `sample_s` the counters are read twice, so many seconds apart, and sizes are measured in
    between. Spare nodes that are down, and the clones of moves, are no problem.
    """
    chosen = list(topology.nodes.values()) if nodes is None else list(nodes)
    sampling = bool(sample_s)
    began = time.monotonic()
    asked = observer.ask(
        topology, partial(_look, topology, sampling=sampling), purpose=purpose, nodes=chosen
    )
    found = {name: seen.loads for name, seen in asked.values.items()}
    problems = list(asked.problems)
    if sample_s:
        firsts = {name: one.sample for name, one in asked.values.items() if one.sample}
        began = max((one.at for one in firsts.values()), default=began)
        time.sleep(max(0.0, began + sample_s - time.monotonic()))
        again = observer.ask(
            topology,
            lambda session, node: _sample(session, node.name),
            purpose=purpose,
            nodes=[topology.nodes[name] for name in firsts],
        )
        problems += again.errors.values()
        for name, second in again.values.items():
            found[name] = with_rates(found[name], firsts[name], second)
    every = len(chosen) == len(topology.nodes) and not asked.problems
    loads = sorted((one for of_node in found.values() for one in of_node), key=_number)
    problems += claims(topology, loads, every=every)
    return ShardLoads(tuple(loads), tuple(problems))


def with_rates(loads: Iterable[ShardLoad], first: Sample, second: Sample) -> tuple[ShardLoad, ...]:
    """Give shards the rates between two samples of their node.

    They stay unknown where the counters were reset in between, or a table was dropped.
    """
    elapsed = second.at - first.at
    if first.reset != second.reset or elapsed <= 0:
        return tuple(loads)
    return tuple(_with_rate(one, first, second, elapsed) for one in loads)


def _with_rate(one: ShardLoad, first: Sample, second: Sample, elapsed: float) -> ShardLoad:
    before, after = first.counters.get(one.shard), second.counters.get(one.shard)
    if before is None or after is None:
        return one
    writes, scans = after.writes - before.writes, after.scans - before.scans
    if writes < 0 or scans < 0:
        return one
    return replace(one, writes_per_s=writes / elapsed, scans_per_s=scans / elapsed)


def claims(topology: Topology, loads: Sequence[ShardLoad], *, every: bool) -> list[ShardctlError]:
    """List shards that several nodes claim, and if `every` node was asked those that none does."""
    owners: dict[ShardId, list[NodeName]] = defaultdict(list)
    for one in loads:
        owners[one.shard].append(one.node)
    disputed: dict[tuple[NodeName, ...], list[ShardId]] = defaultdict(list)
    for shard, nodes in owners.items():
        if len(nodes) > 1:
            disputed[tuple(nodes)].append(shard)
    found: list[ShardctlError] = [
        _disputed(f"nodes {' and '.join(nodes)} each claim shards {ranges.of(shards)}")
        for nodes, shards in disputed.items()
    ]
    if every and (unclaimed := [s for s in topology.owners() if s not in owners]):
        lost = f"no node claims shards {ranges.of(unclaimed)}"
        never = Refused("map_unwritten", lost, hint="run `shardctl init`: no node has the map")
        found.append(_disputed(lost) if owners else never)
    return found


def _disputed(message: str) -> Refused:
    return Refused(
        "owners_disputed",
        message,
        hint="run `shardctl verify --check map` to see each node's map, and `shardctl moves list` "
        "to see whether a move is unfinished",
    )


def _number(one: ShardLoad) -> tuple[int, str]:
    return one.shard, one.node


def _look(topology: Topology, session: Connection, node: Node, *, sampling: bool) -> _Seen:
    """Ask one node everything; nothing where it has no shards of this cluster."""
    session.execute("SET default_transaction_read_only TO on")
    row = cluster.read(session) if cluster.is_present(session) else None
    if row is None or cluster.is_clone_of_a_move(session, node):
        return _Seen((), None)
    identity.check(row, topology, node.name)
    sample = _sample(session, node.name) if sampling else None
    sizes = _sizes(session, node.name)
    (readable,) = queries.one(session, QUERIES["rights"])
    given = {"node": node.name}
    moved = session.execute(QUERIES["moved"], given).fetchall() if readable else []
    last = {shard: (move, ended) for shard, move, ended in moved}
    return _Seen(
        tuple(
            ShardLoad(ShardId(shard), schema, node.name, exists, size, rows, *last.get(shard, ()))
            for shard, schema, exists, size, rows in sizes
        ),
        sample,
    )


def _sample(session: Connection, node: NodeName) -> Sample:
    (reset,) = queries.one(session, QUERIES["reset"])
    found = session.execute(QUERIES["counters"], {"node": node}).fetchall()
    counters = {ShardId(shard): Counters(writes, scans) for shard, writes, scans in found}
    return Sample(time.monotonic(), reset, counters)


def _sizes(
    session: Connection, node: NodeName
) -> list[tuple[int, str, bool, int | None, int | None]]:
    """Measure a node's shards.

    A lock that came between the look for locks and the measuring is met by trying again; in the
    end it is the caller's error.
    """
    session.execute("SELECT set_config('lock_timeout', %s, false)", (_LOCK_TIMEOUT,))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return session.execute(QUERIES["sizes"], {"node": node}).fetchall()
        except psycopg.errors.LockNotAvailable:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError  # pragma: no cover
