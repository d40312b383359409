"""Preflight of a move: checks everything that can be checked beforehand; nothing of it stays.

First all looks run, several places at the same time; then their findings are judged without another
query, and every refusal is reported at once.
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
    fleet,
    member,
    poolers,
    reverse,
    schemas,
    server,
    shards,
    table,
    target,
    trial,
)
from shardctl.moves.preflight.subject import Context, Kind, Place, Subject, Unknown, refused
from shardctl.moves.sub_step import RoundTrips
from shardctl.postgres.connection import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.poolers import PoolerFact
    from shardctl.moves.preflight.subject import Before
    from shardctl.topology.model import ShardId, Topology

FLEET, SOURCE, TARGET, CLONE = Place.fleet, Place.source, Place.target, Place.clone
MEMBER, TRIAL = Place.member, Place.trial
OF_CLONES, OF_STREAMS = (Kind.clone,), (Kind.stream, Kind.reverse)
WITH_COPIES, OF_REVERSES = (Kind.stream,), (Kind.reverse,)

SUBJECTS: tuple[Subject, ...] = (
    Subject(FLEET, fleet.look_at_file),
    Subject(FLEET, fleet.look, fleet.judge),
    Subject(FLEET, judge=fleet.judge_reverses),
    Subject(SOURCE, server.look, server.judge),
    Subject(SOURCE, server.look_for_patroni, server.judge_patroni, again="cutover"),
    Subject(SOURCE, shards.look_for_transactions, shards.judge_transactions),
    Subject(SOURCE, shards.look, shards.judge),
    Subject(SOURCE, schemas.look, again="cutover"),
    Subject(SOURCE, schemas.look_at_copied, schemas.judge_copied, OF_CLONES),
    Subject(SOURCE, schemas.look_at_collations, of=OF_CLONES),
    *table.of(SOURCE),
    Subject(SOURCE, member.look_for_maker, of=OF_STREAMS),
    Subject(SOURCE, member.look_at_triggers_of_source),
    Subject(SOURCE, judge=shards.judge_locks),
    Subject(SOURCE, target.clock_of_source),
    Subject(TARGET, target.look, of=OF_CLONES),
    Subject(TARGET, target.measure, of=OF_CLONES),
    Subject(TARGET, target.programs, target.judge_version, OF_CLONES),
    Subject(TARGET, target.control, of=OF_CLONES),
    Subject(TARGET, target.look_at_directory, target.judge_directory, OF_CLONES),
    Subject(TARGET, trial.try_replication, of=OF_CLONES),
    Subject(TARGET, target.clock_of_target, target.judge_clocks, OF_CLONES),
    Subject(CLONE, target.libc, of=OF_CLONES),
    Subject(CLONE, judge=shards.judge_standby, of=OF_CLONES),
    Subject(CLONE, target.look_for_modules, target.note_modules, OF_CLONES),
    Subject(TRIAL, trial.look, trial.note, OF_CLONES),
    Subject(MEMBER, server.look_at_target, member.judge, OF_STREAMS),
    Subject(MEMBER, target.measure, of=OF_STREAMS),
    Subject(MEMBER, target.clock_of_target, target.judge_clocks, OF_STREAMS),
    Subject(MEMBER, judge=reverse.note_kept, of=WITH_COPIES),
    *table.of(MEMBER),
    Subject(MEMBER, member.look_at_triggers, of=OF_STREAMS),
    Subject(MEMBER, member.look_at_disk, member.judge_disk, WITH_COPIES),
    Subject(MEMBER, member.try_login, member.note_login, OF_STREAMS),
    Subject(MEMBER, member.find_programs, of=WITH_COPIES),
    Subject(FLEET, poolers.look, poolers.judge),
    Subject(SOURCE, shards.look_at_wal, shards.judge_wal),
    Subject(SOURCE, reverse.look_at_source, of=OF_REVERSES),
    Subject(MEMBER, reverse.look_at_target, of=OF_REVERSES),
)
"""In the order in which they are looked at, and reported."""


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


def of_kind(kind: Kind) -> tuple[Subject, ...]:
    """Give the subjects of a kind of move."""
    return tuple(one for one in SUBJECTS if kind in one.of)


def of(plan: MovePlan) -> tuple[Subject, ...]:
    """Give the subjects of a plan."""
    if plan.reverses is not None:
        return of_kind(Kind.reverse)
    return of_kind(Kind.stream if plan.streams else Kind.clone)


def check(topology: Topology, plan: MovePlan, *, purpose: str) -> Facts:
    """Check everything that a move depends on, and return the facts for its plan.

    Leaves nothing changed. `purpose` is the application_name of every session. Raises all refusals
    at once: one ShardctlError (most are PreflightRefused), or Problems for several.
    """
    context = look(Context(topology, plan, purpose))
    said = list(judge(context))
    # Several looks report the same unreachable node.
    problems = {one.message: one for one in said if isinstance(one, ShardctlError)}
    if problems:
        raise together(list(problems.values()))
    if context.unknown:
        raise AssertionError(
            f"no check refused the move, but these have no result: {context.unknown}"
        )
    return _facts(context, tuple(one for one in said if isinstance(one, str)))


def look(context: Context, subjects: Iterable[Subject] | None = None) -> Context:
    """Look at all places at the same time, and then at what the target needs of the source."""
    given = of(context.plan) if subjects is None else subjects
    rows = [subject for subject in given if subject.look is not None]
    at = {place: [one for one in rows if one.place is place] for place in Place}
    works: list[Callable[[], None]] = [
        partial(_look_over, context, SOURCE, at[SOURCE]),
        partial(_look_at_each, context, at[TARGET]),
        *(partial(_look_at_each, context, [one]) for one in at[FLEET]),
    ]
    fanout.at_once(*works)
    _look_at_each(context, at[CLONE])
    _look_over(context, MEMBER, at[MEMBER])
    if at[TRIAL] and not any(isinstance(one, ShardctlError) for one in judge(context, but=TRIAL)):
        _look_at_each(context, at[TRIAL])
    return context


def judge(context: Context, *, but: Place | None = None) -> Iterator[ShardctlError | str]:
    """Judge all findings: refusals, and what the operator should know besides.

    Pure except for the search for installed servers. Subjects in the place `but` are left out.
    """
    yield from context.problems
    for subject in of(context.plan):
        if subject.place is not but:
            try:
                yield from subject.judge(context)
            except Unknown:
                context.unknown.append(subject)


def again(
    topology: Topology, plan: MovePlan, before: Before, *, purpose: str
) -> list[ShardctlError]:
    """Find what has appeared since the preflight, and must not be there before copy or cutover.

    It would bypass the fence or be lost, or no publication may have it.
    """
    context = Context(topology, plan, purpose)
    rows = [one for one in of(plan) if one.again == before]
    basis = [one for one in of(plan) if one.look is server.look]
    _look_over(context, SOURCE, [*basis, *rows])
    found: list[ShardctlError | str] = [*context.problems]
    for one in rows:
        with suppress(Unknown):
            found += one.judge(context)
    return [one for one in found if isinstance(one, ShardctlError)]


def _look_over(context: Context, place: Place, subjects: Sequence[Subject]) -> None:
    """Look over a session with a node that changes nothing; why there is none is kept."""
    if not subjects:
        return
    database = context.topology.database
    node = context.source if place is SOURCE else context.target
    try:
        with connect(
            node, database, purpose=context.purpose, autocommit=True, observing=True
        ) as session:
            server.keep_out(session, seconds=context.plan.options.max_pause_s)
            if place is SOURCE:
                context.session = session
            else:
                context.member = session
            _look_at_each(context, subjects)
    except psycopg.Error as error:
        context.problems.append(refused(node, database.user, error))
    except ShardctlError as error:
        context.problems.append(error)


def _look_at_each(context: Context, subjects: Iterable[Subject]) -> None:
    """Look at one subject after the other; keep the error of each that fails."""
    for one in subjects:
        try:
            if one.look is not None:
                context.ask(one.look)
        except Unknown:
            context.unknown.append(one)
        except ShardctlError as error:
            at_host = one.place in (TARGET, CLONE)
            context.problems += [
                named(f"node {context.target.name}", part) if at_host else part
                for part in error.parts()
            ]


def _facts(context: Context, notes: tuple[str, ...]) -> Facts:
    topology, plan = context.topology, context.plan
    there, looked = context.need(shards.look), context.need(poolers.look)
    sizes = {shard: there.sizes.get(topology.schema(shard)) or 0 for shard in plan.shards}
    place, copy_s = context.of(target.look_at_directory), shards.predicted_s(context)
    round_trips = RoundTrips(
        source=2 * context.need(target.clock_of_source).uncertainty * 1000,
        target=context.need(target.measure),
        pooler=max((one.round_trip_ms for one in looked), default=0.0),
    )
    pause_ms = prediction.parts_ms(topology, plan, round_trips, there.moved)
    return Facts(
        sizes=sizes,
        source_bytes=shards.copied_bytes(context),
        disk_free_bytes=context.of(member.look_at_disk) if place is None else place.free_bytes,
        max_wal_bytes=context.need(shards.look_at_wal).limit(plan),
        predicted_copy_s=copy_s,
        predicted_s=prediction.move_s(plan, copy_s, sum(sizes.values()), there.moved),
        predicted_pause_ms=sum(pause_ms.values()),
        reclaimed_bytes=shards.reclaimed(context),
        poolers=tuple(one.fact for one in looked if one.fact is not None),
        reversible=tuple(move.id for move, _ in fleet.in_the_way(context)),
        notes=notes,
    )
