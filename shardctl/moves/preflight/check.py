"""Preflight of a move: checks everything that can be checked beforehand; nothing of it stays.

`registry.py` lists the checks. First all looks run, several places at the same time; then
their findings are judged without another query, and every refusal is reported at once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, named, together
from shardctl.moves import prediction
from shardctl.moves.preflight import (
    directory,
    fleet,
    member,
    poolers,
    registry,
    server,
    shards,
    target,
    wal,
)
from shardctl.moves.preflight.subject import Context, Place, Unknown, refused
from shardctl.moves.sub_step import RoundTrips
from shardctl.postgres.connection import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.poolers import PoolerFact
    from shardctl.moves.preflight.subject import Before, Subject
    from shardctl.topology.model import ShardId, Topology


@dataclass(frozen=True, slots=True)
class Facts:
    """What the plan shows to the operator."""

    sizes: Mapping[ShardId, int]
    """Bytes of each moved shard."""
    source_bytes: int
    """Bytes that are copied: all of the source's databases, or the moved shards of a stream."""
    disk_free_bytes: int | None
    """On the disk of the target's data directory; None where its host does not report it."""
    max_wal_bytes: int | None
    """The most WAL that the source keeps for the move."""
    predicted_copy_s: float
    predicted_s: float
    """The whole move, where it is alone on its machines."""
    predicted_pause_ms: float
    reclaimed_bytes: int
    """What prune will give back, on both nodes."""
    poolers: tuple[PoolerFact, ...]
    reversible: tuple[str, ...]
    """Moves that can no longer be reversed when this one begins."""
    notes: tuple[str, ...]


def check(topology: Topology, plan: MovePlan, *, purpose: str) -> Facts:
    """Check everything that a move depends on, and return the facts for its plan.

    Leaves nothing changed. `purpose` is the application_name of every session. Raises all refusals
    at once: one ShardctlError (most are PreflightRefused), or Problems for several.
    """
    context = look(Context(topology, plan, purpose))
    # Several looks report the same unreachable node.
    problems = {error.message: error for error in judge(context)}
    if problems:
        raise together(list(problems.values()))
    if context.unknown:
        raise AssertionError(
            f"no check refused the move, but these have no result: {context.unknown}"
        )
    return _facts(context)


def look(context: Context, subjects: Iterable[Subject] | None = None) -> Context:
    """Look at all places at the same time, and then at what the target needs of the source."""
    given = registry.of(context.plan) if subjects is None else subjects
    rows = [subject for subject in given if subject.look is not None]
    at = {place: [one for one in rows if one.place is place] for place in Place}
    works: list[Callable[[], None]] = [
        partial(_look_over, context, Place.source, at[Place.source]),
        partial(_look_at_each, context, at[Place.target]),
        *(partial(_look_at_each, context, [one]) for one in at[Place.fleet]),
    ]
    fanout.at_once(*works)
    _look_at_each(context, at[Place.clone])
    _look_over(context, Place.member, at[Place.member])
    if at[Place.trial] and not list(judge(context)):
        _look_at_each(context, at[Place.trial])
    return context


def judge(context: Context) -> Iterator[ShardctlError]:
    """Judge all findings; pure except for the search for installed servers."""
    skipped: tuple[Place, ...] = ()
    if context.plan.target in {one.move.target for one in fleet.others(context)}:
        # Another move's files on the target must not be cleared away.
        skipped = (Place.target, Place.clone)
    for place, error in context.problems:
        if place not in skipped:
            yield error
    for subject in registry.of(context.plan):
        if subject.place not in skipped:
            try:
                yield from subject.judge(context)
            except Unknown:
                context.unknown.append(subject.name)


def notes(context: Context) -> Iterator[str]:
    """Report what the operator should know besides refusals."""
    for subject in registry.of(context.plan):
        with suppress(Unknown):
            yield from subject.notes(context)


def again(
    topology: Topology, plan: MovePlan, before: Before, *, purpose: str
) -> list[ShardctlError]:
    """Find what has appeared since the preflight, and must not be there before copy or cutover.

    It would bypass the fence or be lost, or no publication may have it.
    """
    context = Context(topology, plan, purpose)
    rows = [one for one in registry.of(plan) if one.again == before]
    basis = [one for one in registry.of(context.plan) if one.look is server.look]
    _look_over(context, Place.source, [*basis, *rows])
    found = [error for _, error in context.problems]
    for one in rows:
        with suppress(Unknown):
            found += one.judge(context)
    return found


def _look_over(context: Context, place: Place, subjects: Sequence[Subject]) -> None:
    """Look over a session with a node that changes nothing; why there is none is kept."""
    if not subjects:
        return
    database = context.topology.database
    node = context.source if place is Place.source else context.target
    try:
        with connect(
            node, database, purpose=context.purpose, autocommit=True, observing=True
        ) as session:
            server.keep_out(session, seconds=context.plan.options.max_pause_s)
            if place is Place.source:
                context.session = session
            else:
                context.member = session
            _look_at_each(context, subjects)
    except psycopg.Error as error:
        context.problems.append((place, refused(node, database.user, error)))
    except ShardctlError as error:
        context.problems.append((place, error))


def _look_at_each(context: Context, subjects: Iterable[Subject]) -> None:
    """Look at one subject after the other; keep the error of each that fails."""
    for one in subjects:
        try:
            if one.look is not None:
                context.ask(one.look)
        except Unknown:
            context.unknown.append(one.name)
        except ShardctlError as error:
            at_host = one.place in (Place.target, Place.clone)
            context.problems += [
                (one.place, named(f"node {context.target.name}", part) if at_host else part)
                for part in error.parts()
            ]


def _facts(context: Context) -> Facts:
    topology, plan, round_trips = context.topology, context.plan, _round_trips(context)
    there, room = context.need(shards.look), context.of(wal.look)
    looked = context.of(poolers.look) or ()
    sizes = {shard: there.sizes.get(topology.schema(shard)) or 0 for shard in plan.shards}
    place, copy_s = context.of(directory.look), wal.predicted_s(context)
    return Facts(
        sizes=sizes,
        source_bytes=wal.copied_bytes(context),
        disk_free_bytes=context.of(member.look_at_disk) if place is None else place.free_bytes,
        max_wal_bytes=room.limit(plan) if room is not None else None,
        predicted_copy_s=copy_s,
        predicted_s=prediction.move_s(plan, copy_s, sum(sizes.values()), there.moved),
        predicted_pause_ms=sum(
            prediction.parts_ms(topology, plan, round_trips, there.moved).values()
        ),
        reclaimed_bytes=shards.reclaimed(context),
        poolers=tuple(one.fact for one in looked if one.fact is not None),
        reversible=tuple(move.id for move, _ in fleet.in_the_way(context)),
        notes=tuple(notes(context)),
    )


def _round_trips(context: Context) -> RoundTrips:
    """Return the cutover's round trips; one that was not measured counts as 0."""
    clock = context.of(target.clock_of_source)
    return RoundTrips(
        source=2 * clock.uncertainty * 1000 if clock is not None else 0.0,
        target=context.of(target.measure) or 0.0,
        pooler=max((one.round_trip_ms for one in context.of(poolers.look) or ()), default=0.0),
    )
