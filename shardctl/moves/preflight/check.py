"""Preflight of a move: everything that can be known beforehand, told at once; it only reads.

`registry.SUBJECTS` says what is looked at. All looks come first, at several places at the same
time; what they found is judged then, without another question.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, together
from shardctl.moves import prediction
from shardctl.moves.preflight import cutover, directory, fleet, poolers, server, shards, wal
from shardctl.moves.preflight.registry import SUBJECTS
from shardctl.moves.preflight.subject import Context, Place, Unknown, refused
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres.connection import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.poolers import PoolerFact
    from shardctl.moves.preflight.subject import Subject
    from shardctl.topology.model import ShardId, Topology

sizes = shards.measure


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


def check(
    topology: Topology, plan: MovePlan, *, purpose: str, subjects: Sequence[Subject] = SUBJECTS
) -> Facts:
    """Look at everything that a move depends on, and say what it will be like.

    Changes nothing. `purpose` names who asks, in every session. Raises every refusal at once:
    one ShardctlError (most are PreflightRefused), or Problems of several.
    """
    context = look(Context(topology, plan, purpose), subjects)
    # One node that is away is met by several questions.
    problems = {error.message: error for error in judge(context, subjects)}
    if problems:
        raise together(list(problems.values()))
    if context.unknown:
        raise AssertionError(f"nothing is refused, and this is not known: {context.unknown}")
    return _facts(context, subjects)


def look(context: Context, subjects: Iterable[Subject] = SUBJECTS) -> Context:
    """Look at all places at the same time, and then at what the clone would have."""
    rows = [subject for subject in subjects if subject.look is not None]
    at = {place: [one for one in rows if one.place is place] for place in Place}
    works: list[Callable[[], None]] = [
        partial(_look_at_source, context, at[Place.source]),
        partial(_look_at_each, context, at[Place.target]),
        *(partial(_look_at_each, context, [one]) for one in at[Place.fleet]),
    ]
    fanout.at_once(*works)
    _look_at_each(context, at[Place.clone])
    return context


def judge(context: Context, subjects: Iterable[Subject] = SUBJECTS) -> Iterator[ShardctlError]:
    """Judge all that was seen; pure but for the search for installed servers."""
    skipped: tuple[Place, ...] = ()
    if context.plan.target in {move.target for move, _ in fleet.others(context)}:
        # What another move has in the target's place is not to be cleared away.
        skipped = (Place.target, Place.clone)
    for place, error in context.problems:
        if place not in skipped:
            yield error
    for subject in subjects:
        if subject.place not in skipped:
            try:
                yield from subject.judge(context)
            except Unknown:
                context.unknown.append(subject.name)


def notes(context: Context, subjects: Iterable[Subject] = SUBJECTS) -> Iterator[str]:
    """Say what the operator should know beside refusals."""
    for subject in subjects:
        if subject.notes is not None:
            with suppress(Unknown):
                yield from subject.notes(context)


def again(
    topology: Topology, plan: MovePlan, *, purpose: str, subjects: Sequence[Subject] = SUBJECTS
) -> list[ShardctlError]:
    """Find what has come about since the preflight and would write behind the fence, or be lost."""
    context = Context(topology, plan, purpose)
    rows = [one for one in subjects if one.again is not None]
    basis = [one for one in subjects if one.look is server.look]
    _look_at_source(context, [*basis, *rows])
    found = [error for _, error in context.problems]
    for one in rows:
        with suppress(Unknown):
            found += one.again(context) if one.again is not None else ()
    return found


def _look_at_source(context: Context, subjects: Sequence[Subject]) -> None:
    node, database = context.source, context.topology.database
    if not subjects:
        return
    try:
        with connect(
            node, database, purpose=context.purpose, autocommit=True, observing=True
        ) as session:
            server.keep_out(session, seconds=context.plan.options.max_pause_s)
            context.session = session
            _look_at_each(context, subjects)
    except psycopg.Error as error:
        context.problems.append((Place.source, refused(node, database.user, error)))
    except ShardctlError as error:
        context.problems.append((Place.source, error))


def _look_at_each(context: Context, subjects: Iterable[Subject]) -> None:
    """Look at one subject after the other; why one could not be looked at is kept."""
    for one in subjects:
        try:
            if one.look is not None:
                context.ask(one.look)
        except Unknown:
            context.unknown.append(one.name)
        except ShardctlError as error:
            context.problems += [(one.place, _named(context, one, e)) for e in error.parts()]


def _named(context: Context, subject: Subject, error: ShardctlError) -> ShardctlError:
    """Give errors of the target's host that do not say where the node's name."""
    node, at_target = context.target.name, subject.place in (Place.target, Place.clone)
    if not at_target or error.message.startswith(f"node {node}"):
        return error
    return TargetUnfit(node, "host", error.message, hint=error.hint)


def _facts(context: Context, subjects: Iterable[Subject]) -> Facts:
    topology, plan, distance = context.topology, context.plan, cutover.distance(context)
    there, room = context.need(shards.look), context.of(wal.look)
    looked = context.of(poolers.look) or ()
    return Facts(
        sizes={shard: there.sizes.get(topology.schema(shard)) or 0 for shard in plan.shards},
        source_bytes=context.need(server.look).bytes or 0,
        disk_free_bytes=context.need(directory.look).free_bytes,
        max_wal_bytes=room.limit(plan) if room is not None else None,
        predicted_copy_s=wal.predicted_s(context),
        predicted_pause_ms=prediction.pause_ms(topology, plan, distance),
        predicted_refused_ms=prediction.refused_ms(topology, plan, distance, there.tables),
        reclaimed_bytes=shards.reclaimed(context),
        poolers=tuple(one.fact for one in looked if one.fact is not None),
        notes=tuple(notes(context, subjects)),
    )
