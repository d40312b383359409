"""Reverses: what the target keeps for one, and whether both nodes have what one goes on from.

Nothing has changed there but rows of clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused, together
from shardctl.meter import duration, listed
from shardctl.moves import ddl, marks, reverse_kept
from shardctl.moves import wal as room
from shardctl.moves.plan import COPY_INSTEAD, SourceUnfit, TargetUnfit
from shardctl.moves.preflight import shards
from shardctl.postgres import catalog, slots
from shardctl.postgres.logical import publication
from shardctl.topology import names as naming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection


def retired(plan: MovePlan) -> tuple[str, ...]:
    """Name the copies that the move that is reversed has retired on the target."""
    move = plan.reverses.move if plan.reverses is not None else ""
    return tuple(naming.retired(schema, move) for schema in plan.schemas)


def names(session: Connection, plan: MovePlan) -> tuple[str, ...]:
    """Give the names that the copies have at this moment: they are renamed all at once."""
    named = retired(plan)
    return named if catalog.present(session, named) else plan.schemas


def require_slot(session: Connection, plan: MovePlan) -> None:
    """See that the source keeps all changes since that move; raises reverse_lost."""
    published = publication.oid(session, plan.slot) is not None
    if not published or not slots.keeps(session, plan.slot):
        what = "replication slot" if published else "publication"
        error = Refused(
            "reverse_lost",
            f"node {plan.source}: {what} {plan.slot} is lost, and with it changes that "
            f"node {plan.target} lacks",
            hint=f"run `shardctl moves abort {plan.id}` if the reverse has begun, then "
            f"{COPY_INSTEAD}",
        )
        error.resumable = False
        raise error


def at_source(session: Connection, plan: MovePlan) -> Iterator[SourceUnfit]:
    """Find DDL on the shards since the move that is reversed: its stream carries rows alone."""
    noted = marks.last(session, plan.id, reverse_kept.TARGET_KEPT) or {}
    parts = noted.get("parts", [{} for _ in plan.schemas])
    if changed := ddl.changes(parts, session, plan.schemas, named=plan.schemas):
        yield SourceUnfit(
            plan.source,
            "reverse_altered",
            f"DDL has changed the shards since they moved here: {listed(changed)}",
            hint=COPY_INSTEAD,
        )


def at_target(session: Connection, plan: MovePlan) -> Iterator[TargetUnfit]:
    """Find what was done to the retired copies, and whether it is the server that had them."""
    now = names(session, plan)

    def unfit(code: str, what: str) -> TargetUnfit:
        return TargetUnfit(plan.target, code, what, hint=COPY_INSTEAD)

    if missing := sorted({*now} - catalog.present(session, now)):
        yield unfit("retired_missing", f"it lacks retired copies: {listed(missing)}")
        return
    noted = marks.last(session, plan.id, reverse_kept.SOURCE_KEPT)
    if noted is None:
        yield unfit(
            "retired_unknown",
            "it has no record of its retired copies, as of another server or an older backup",
        )
        return
    seen = reverse_kept.look_at(session, now)
    if seen["timeline"] != noted["timeline"]:
        yield unfit(
            "retired_on_another_timeline",
            f"its server is on timeline {seen['timeline']} and was on {noted['timeline']} when its "
            "copies were retired: after a failover they may lack rows",
        )
    touched = ddl.changes(noted["parts"], session, now, named=retired(plan))
    before = dict(zip(retired(plan), now, strict=True))
    for name, file in noted["files"].items():
        schema, _, relation = name.partition(".")
        if seen["files"].get(f"{before.get(schema, schema)}.{relation}") not in (None, file):
            touched.append(f"{name} was emptied or rewritten")
    if touched:
        yield unfit(
            "retired_touched",
            f"its retired copies are not as the move left them: {listed(touched)}",
        )


def look_at_source(context: Context) -> None:
    """Compare the structure of the shards; raises reverse_lost, reverse_wal, SourceUnfit."""
    require_slot(context.session, context.plan)
    if context.need(shards.look_at_wal).limit(context.plan) is not None:
        settled = room.settled(context.plan, context.source, context.session)
        room.require_kept(context.session, settled)
    if found := list(at_source(context.session, context.plan)):
        raise together(found)


def look_at_target(context: Context) -> None:
    """Compare the retired copies with what they were; raises TargetUnfit."""
    if found := list(at_target(context.member, context.plan)):
        raise together(found)


def note_kept(context: Context) -> Iterator[str]:
    """Say for how long the move can be reversed, and what the target keeps for that."""
    seconds, node = context.plan.options.keep_reverse_s, context.plan.target
    if context.plan.reverse is None or context.plan.options.rehearse_only:
        return
    yield (
        f"the move can be reversed for {duration(seconds)} after its end (--keep-reverse): node "
        f"{node} keeps WAL for that, and migrations of these shards wait"
    )
