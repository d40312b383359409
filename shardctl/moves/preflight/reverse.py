"""Reverses: what the target keeps for one, and whether both nodes have what one goes on from.

Nothing has changed there but rows of clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.ids.generator import quote_identifier
from shardctl.meter import duration, listed
from shardctl.moves import ddl, marks, reverse_kept
from shardctl.moves import wal as room
from shardctl.moves.plan import COPY_INSTEAD, NodeUnfit, SourceUnfit, TargetUnfit
from shardctl.moves.preflight import member, replication, wal
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import catalog, queries, slots
from shardctl.postgres.logical import publication
from shardctl.topology import names as naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardctl.errors import ShardctlError
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
    changed = ddl.changes(
        noted.get("parts", [{} for _ in plan.schemas]), session, plan.schemas, named=plan.schemas
    )
    if changed:
        yield SourceUnfit(
            plan.source,
            "reverse_altered",
            f"DDL has changed the shards since they moved here: {listed(changed)}",
            hint=COPY_INSTEAD,
        )


def at_target(session: Connection, plan: MovePlan) -> Iterator[TargetUnfit]:
    """Find what was done to the retired copies, and whether it is the server that had them."""
    node, now = plan.target, names(session, plan)
    if missing := sorted({*now} - catalog.present(session, now)):
        yield TargetUnfit(
            node,
            "retired_missing",
            f"it lacks retired copies: {listed(missing)}",
            hint=COPY_INSTEAD,
        )
        return
    noted = marks.last(session, plan.id, reverse_kept.SOURCE_KEPT)
    if noted is None:
        yield TargetUnfit(
            node,
            "retired_unknown",
            "it has no record of its retired copies, as of another server or an older backup",
            hint=COPY_INSTEAD,
        )
        return
    seen = reverse_kept.look_at(session, now)
    if seen["timeline"] != noted["timeline"]:
        yield TargetUnfit(
            node,
            "retired_on_another_timeline",
            f"its server is on timeline {seen['timeline']} and was on {noted['timeline']} when its "
            "copies were retired: after a failover they may lack rows",
            hint=COPY_INSTEAD,
        )
    altered = ddl.changes(noted["parts"], session, now, named=retired(plan))
    before = dict(zip(retired(plan), now, strict=True))
    emptied = [
        f"{name} was emptied or rewritten"
        for name, file in noted["files"].items()
        if seen["files"].get(_under(name, before)) not in (None, file)
    ]
    if altered or emptied:
        yield TargetUnfit(
            node,
            "retired_touched",
            "its retired copies are not as the move left them: "
            f"{listed(list(dict.fromkeys([*altered, *emptied])))}",
            hint=COPY_INSTEAD,
        )


def _under(name: str, renamed: dict[str, str]) -> str:
    """Give a table's name under the name that its schema has now."""
    schema, _, table = name.partition(".")
    return f"{renamed.get(schema, schema)}.{table}"


def origin_rights(session: Connection) -> tuple[str, ...]:
    """List the functions that set where a stream begins, and that the role may not execute."""
    return tuple(name for (name,) in session.execute(QUERIES["origin_rights"]))


def look_at_source(context: Context) -> tuple[ShardctlError, ...]:
    """Compare the structure of the shards; raises reverse_lost, reverse_wal."""
    require_slot(context.session, context.plan)
    if context.need(wal.look).limit(context.plan) is not None:
        settled = room.settled(context.plan, context.source, context.session)
        room.require_kept(context.session, settled)
    return tuple(at_source(context.session, context.plan))


def look_at_target(context: Context) -> tuple[ShardctlError, ...]:
    """Compare the retired copies with what they were, and look for rights that are missing."""
    node, user = context.plan.target, context.topology.database.user
    found: list[ShardctlError] = [*at_target(context.member, context.plan)]
    if lacking := origin_rights(context.member):
        found.append(
            TargetUnfit(
                node,
                "reverse_rights",
                f"{user} may not execute {' and '.join(lacking)} there",
                hint=f"run as a superuser there: GRANT EXECUTE ON FUNCTION {', '.join(lacking)} TO "
                f"{quote_identifier(user)}",
            )
        )
    return tuple(found)


def judge_source(context: Context) -> Iterable[ShardctlError]:
    """Refuse shards that DDL has changed."""
    return context.need(look_at_source)


def judge_target(context: Context) -> Iterable[ShardctlError]:
    """Refuse copies that were changed, or are another server's."""
    return context.need(look_at_target)


_WITHOUT = ", or give --keep-reverse 0, and the move cannot be reversed"


@dataclass(frozen=True, slots=True)
class Used:
    """How many WAL senders and slots of the target are in use, and when it drops an unused slot.

    `timeout_s` is 0 where it does not. `may_replicate` is whether the login role may make a slot.
    """

    senders: int = 0
    slots: int = 0
    timeout_s: int = 0
    may_replicate: bool = True


def look_for_room(context: Context) -> Used:
    """Ask the target."""
    given = {"purpose": context.purpose}
    (seconds,) = queries.one(context.member, QUERIES["timeout"])
    senders, slots = queries.one(context.member, QUERIES["used"], given)
    (may_replicate,) = queries.one(context.member, QUERIES["may_replicate"])
    return Used(senders, slots, int(seconds), may_replicate)


def look_for_rights(context: Context) -> tuple[str, ...]:
    """Ask the source, which would be the target of the reverse."""
    return origin_rights(context.session)


def note_kept(context: Context) -> Iterator[str]:
    """Say for how long the move can be reversed, and what the target keeps for that."""
    seconds, node = context.plan.options.keep_reverse_s, context.plan.target
    if context.plan.reverse is None or context.plan.options.rehearse_only:
        return
    yield (
        f"the move can be reversed for {duration(seconds)} after its end (--keep-reverse): node "
        f"{node} keeps WAL for that, and migrations of these shards wait"
    )
    if lacking := context.of(look_for_rights):
        yield (
            f"{context.topology.database.user} may not execute {' and '.join(lacking)} on node "
            f"{context.plan.source}: grant that before you reverse the move"
        )
    if 0 < (timeout_s := context.need(look_for_room).timeout_s) < seconds:
        yield (
            f"node {node} drops a slot that is unused for {duration(timeout_s)} "
            "(idle_replication_slot_timeout): after that the move cannot be reversed"
        )


def judge_room(context: Context) -> Iterator[NodeUnfit]:
    """Refuse a target that cannot keep changes for a reverse, where one is wanted."""
    if context.plan.reverse is None:
        return
    node, there, used = context.plan.target, context.need(member.look), context.need(look_for_room)
    yield from replication.undecodable(node, there, otherwise=_WITHOUT)
    if not used.may_replicate:
        user = context.topology.database.user
        yield TargetUnfit(
            node,
            "reverse_rights",
            f"{user} lacks REPLICATION there, and a reverse needs a slot",
            hint=f"run as a superuser there: ALTER ROLE {quote_identifier(user)} REPLICATION"
            f"{_WITHOUT}",
        )
    in_use = (used.senders, used.slots)
    finish = ", run `shardctl moves finish` for a move that need not be reversed any more"
    yield from replication.full(node, there, in_use, wanted=(1, 1), otherwise=finish + _WITHOUT)
