"""Preflight of a move: everything that can be known beforehand, told at once; it only reads.

Each part looks first and judges then: `fleet` all nodes, `source` and `schemas` what is moved
and what would stay bound to it, `target` with `directory` and `occupant` the place for the clone,
`poolers`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.errors import ShardctlError, together
from shardctl.moves import file, prediction, wal
from shardctl.moves.distance import Distance
from shardctl.moves.preflight import clocks, tls
from shardctl.moves.preflight import fleet as fleets
from shardctl.moves.preflight import poolers as pooling
from shardctl.moves.preflight import source as sources
from shardctl.moves.preflight import target as targets
from shardctl.moves.refusals import PreflightRefused, collected
from shardctl.provision import maps
from shardctl.state import journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.checks.clock import Offset
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.fleet import Fleet
    from shardctl.moves.preflight.poolers import Looked, PoolerFact
    from shardctl.moves.preflight.source import Source
    from shardctl.moves.preflight.target import Target
    from shardctl.topology.model import NodeName, ShardId, Topology

COPY_RATE = 200 * 1024 * 1024
"""Bytes a second that a copy is taken to make where `--max-rate` does not say."""

_WIDTH = 16
_RATE = re.compile(r"(\d+)([kM]?)")
_RATES = range(32 * 1024, 1024 * 1024 * 1024 + 1)
"""What pg_basebackup takes, in bytes a second."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the plan shows an operator."""

    sizes: Mapping[ShardId, int]
    """Bytes of each moved shard."""
    source_bytes: int
    """Bytes of the source's databases, all of which the clone copies."""
    disk_free_bytes: int | None
    """On the disk of the target's data directory; None where its host did not tell."""
    max_wal_bytes: int | None
    """WAL that the source keeps for the move at most."""
    predicted_copy_s: float
    predicted_pause_ms: float
    predicted_refused_ms: float | None
    """None where writes wait, as reads do."""
    reclaimed_bytes: int
    """What prune will give back, on both nodes."""
    poolers: tuple[PoolerFact, ...]
    notes: tuple[str, ...]


def check(topology: Topology, plan: MovePlan, *, purpose: str) -> Facts:
    """Look at everything that a move depends on, and say what it will be like.

    Changes nothing. `purpose` names who asks, in every session. Raises every refusal at once:
    one ShardctlError (most are PreflightRefused), or Problems of several.
    """
    seen = look(topology, plan, purpose)
    problems = [*seen.problems, *judge(topology, plan, seen)]
    source, target = seen.source, seen.target
    if problems or source is None or target is None or source.bytes is None:
        # One node that is away is met by several questions.
        raise together(list({error.message: error for error in problems}.values()))
    return Facts(
        sizes={s: source.sizes.get(topology.schema(s)) or 0 for s in plan.shards},
        source_bytes=source.bytes,
        disk_free_bytes=target.directory.free_bytes if target.directory else None,
        max_wal_bytes=source.wal.limit(plan) if source.wal else None,
        predicted_copy_s=source.bytes / rate(plan.options.max_rate),
        predicted_pause_ms=prediction.pause_ms(topology, plan, seen.distance),
        predicted_refused_ms=prediction.refused_ms(topology, plan, seen.distance, source.tables),
        reclaimed_bytes=sources.reclaimed(topology, plan, source),
        poolers=tuple(one.fact for one in seen.poolers if one.fact is not None),
        notes=tuple(notes(topology, plan, source, target, seen.poolers)),
    )


def sizes(topology: Topology, node: NodeName, *, purpose: str) -> dict[ShardId, int]:
    """Measure the shards that live on a node, in bytes: what `--half` goes by.

    Raises NodeUnavailable and PreflightRefused.
    """
    return sources.sizes(topology, node, purpose=purpose)


def rate(text: str | None) -> int:
    """Read a rate as pg_basebackup takes it, in bytes a second; COPY_RATE for None.

    Raises PreflightRefused.

    >>> rate("100M"), rate("64"), rate(None)
    (104857600, 65536, 209715200)
    """
    if text is None:
        return COPY_RATE
    found = _RATE.fullmatch(text)
    bytes_a_second = int(found[1]) * 1024 ** (2 if found[2] == "M" else 1) if found else 0
    if bytes_a_second not in _RATES:
        raise PreflightRefused(
            "--max-rate",
            "max_rate",
            f"{text!r} is no rate for pg_basebackup",
            hint="give kilobytes a second as in 4096k, or megabytes as in 100M; 32k to 1024M",
        )
    return bytes_a_second


@dataclass(slots=True)
class Seen:
    """All that was seen; what could not be looked at is None, and `problems` say why."""

    fleet: Fleet | None = None
    source: Source | None = None
    target: Target | None = None
    poolers: list[Looked] = field(default_factory=list)
    problems: list[ShardctlError] = field(default_factory=list)

    @property
    def distance(self) -> Distance:
        """How far all are who will be asked in the cutover; near where that is not known."""
        return Distance.of(
            source=2 * self.source.clock.uncertainty * 1000 if self.source else 0.0,
            target=self.target.distance_ms if self.target else 0.0,
            pooler=max((one.distance_ms for one in self.poolers), default=0.0),
        )


def look(topology: Topology, plan: MovePlan, purpose: str) -> Seen:
    """Look at all parts at the same time."""
    seen = Seen()

    def the_fleet() -> None:
        seen.fleet = fleets.look(topology, plan, purpose=purpose)

    def the_source() -> None:
        seen.source = sources.look(topology, plan, purpose=purpose)

    def the_target() -> None:
        seen.target = targets.look(topology, plan, purpose=purpose)

    def the_map() -> None:
        maps.require(topology, plan.map_version, purpose=purpose)

    def the_poolers() -> None:
        found = fanout.run(
            topology.poolers.values(),
            lambda pooler: pooling.look(topology, plan, pooler, purpose=purpose),
            width=_WIDTH,
        )
        seen.poolers = [outcome.result() for outcome in found]

    parts: list[Callable[[], None]] = [the_map, the_fleet, the_source, the_target, the_poolers]
    for outcome in fanout.run(parts, lambda part: part(), width=len(parts)):
        if isinstance(outcome.error, ShardctlError):
            seen.problems += outcome.error.parts()
        elif outcome.error is not None:
            raise outcome.error
    seen.problems += file.problems(topology, plan)
    if seen.source is not None and seen.target is not None:
        targets.look_at_files(topology, plan, seen.target, seen.source)
    return seen


def judge(topology: Topology, plan: MovePlan, seen: Seen) -> Iterator[ShardctlError]:
    """Judge all that was seen; pure but for the search for installed servers."""
    source, target = seen.source, seen.target
    others = fleets.unfinished(plan, seen.fleet) if seen.fleet is not None else []
    if seen.fleet is not None:
        yield from fleets.judge(topology, plan, seen.fleet)
    if source is not None:
        # The clone of another move follows the source; nothing promotes it but that move.
        clones = [journal.slot(move.id) for move, _ in others]
        yield from sources.judge(topology, plan, source, clones=clones)
        yield from _wal(plan, source)
    # What another move has in the target's place is not to be cleared away.
    if target is not None and plan.target not in {move.target for move, _ in others}:
        systems = {peer.system for peer in seen.fleet.peers.values()} if seen.fleet else set()
        unproven = fleets.unproven(plan.target, seen.fleet) if seen.fleet else []
        yield from targets.judge(topology, plan, target, source, systems=systems, unproven=unproven)
        if target.tls is not None and source is not None and source.tls is not None:
            yield from tls.judge(topology, plan, target.tls, source.tls, seen.poolers)
    for looked in seen.poolers:
        yield from pooling.judge(topology, plan, looked)
    if source is not None:
        yield from _stragglers(plan, source, seen.poolers)
    yield from clocks.judge(_offsets(plan, source, target))
    tables = source.tables if source is not None else 0
    yield from _budget(topology, plan, seen.distance, tables)


def _wal(plan: MovePlan, source: Source) -> Iterator[ShardctlError]:
    """Find a source without room for the WAL of the copy; a rate that is none is told elsewhere."""
    problems: list[ShardctlError] = []
    with collected(problems):
        copy_s = (source.bytes or 0) / rate(plan.options.max_rate)
    if source.wal is not None and not problems:
        yield from wal.judge(plan, source.wal, copy_s)


def _stragglers(
    plan: MovePlan, source: Source, poolers: Sequence[Looked]
) -> Iterator[PreflightRefused]:
    """Find old transactions that came through a pooler: its pause would wait for them."""
    busy = frozenset().union(*(one.busy for one in poolers))
    found = [one for one in source.transactions if one.pid in busy and not one.writes]
    if found:
        yield sources.old_transactions(plan, found)


def _offsets(plan: MovePlan, source: Source | None, target: Target | None) -> dict[str, Offset]:
    offsets = {}
    if source is not None:
        offsets[f"node {plan.source}"] = source.clock
    if target is not None and target.clock is not None:
        offsets[f"the host of node {plan.target}"] = target.clock
    return offsets


def _budget(
    topology: Topology, plan: MovePlan, distance: Distance, tables: int
) -> Iterator[ShardctlError]:
    problems: list[ShardctlError] = []
    with collected(problems):
        prediction.require_time(topology, plan, distance, tables)
    with collected(problems):
        rate(plan.options.max_rate)
    yield from problems


def notes(
    topology: Topology,
    plan: MovePlan,
    source: Source,
    target: Target,
    poolers: Sequence[Looked],
) -> Iterator[str]:
    """Say what the operator should know beside refusals."""
    yield from targets.notes(topology, plan, target)
    yield from sources.notes(topology, plan, source)
    if poolers:
        yield (
            f"whether poolers can log in to node {plan.target} is seen when it runs: it gets the "
            f"pg_hba.conf of node {plan.source}"
        )
    else:
        yield (
            "the topology has no poolers: clients of moved shards get errors from the fence until "
            "they read the map again"
        )
    for looked in poolers:
        yield from pooling.notes(plan, looked)
    if source.wal is not None:
        yield from wal.notes(plan, source.wal)
