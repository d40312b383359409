"""What the target needs, so that a move to it can be reversed: it decodes its WAL, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.ids.generator import quote_identifier
from shardctl.meter import duration
from shardctl.moves.preflight import decoding, member, reverse
from shardctl.moves.preflight.subject import QUERIES, STREAM
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

_WITHOUT = "or give --keep-reverse 0, and the move cannot be reversed"


@dataclass(frozen=True, slots=True)
class Used:
    """How many WAL senders and slots of the target are in use, and when it drops an unused slot.

    `timeout_s` is 0 where it does not. `may_replicate` is whether the login role may make a slot.
    """

    senders: int = 0
    slots: int = 0
    timeout_s: int = 0
    may_replicate: bool = True


def look(context: Context) -> Used:
    """Ask the target."""
    given = {"purpose": context.purpose}
    (seconds,) = queries.one(context.member, STREAM["timeout"])
    senders, slots = queries.one(context.member, QUERIES["used"], given)
    (may_replicate,) = queries.one(context.member, STREAM["may_replicate"])
    return Used(senders, slots, int(seconds), may_replicate)


def look_for_rights(context: Context) -> tuple[str, ...]:
    """Ask the source, which would be the target of the reverse."""
    return reverse.origin_rights(context.session)


def notes(context: Context) -> Iterator[str]:
    """Say for how long the move can be reversed, and what the target keeps for that."""
    seconds, node = context.plan.options.keep_reverse_s, context.plan.target
    if context.plan.reverse is None:
        return
    yield kept(context)
    if lacking := context.of(look_for_rights):
        yield (
            f"{context.topology.database.user} may not execute {' and '.join(lacking)} on node "
            f"{context.plan.source}: grant that before you reverse the move"
        )
    if 0 < (timeout_s := context.need(look).timeout_s) < seconds:
        yield (
            f"node {node} drops a slot that is unused for {duration(timeout_s)} "
            "(idle_replication_slot_timeout): after that the move cannot be reversed"
        )


def kept(context: Context) -> str:
    """Say for how long the move can be reversed."""
    seconds, node = context.plan.options.keep_reverse_s, context.plan.target
    return (
        f"the move can be reversed for {duration(seconds)} after its end (--keep-reverse): node "
        f"{node} keeps WAL for that, and migrations of these shards wait"
    )


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a target that cannot keep changes for a reverse, where one is wanted."""
    if context.plan.reverse is None:
        return
    node, there, used = context.plan.target, context.need(member.look), context.need(look)
    if there.version_number in decoding.BROKEN:
        yield TargetUnfit(
            node,
            "reverse_decoding_broken",
            f"logical decoding of PostgreSQL {there.version} is known to run out of memory, and a "
            "reverse needs it",
            hint=f"install {decoding.BROKEN[there.version_number]} or newer there, {_WITHOUT}",
        )
    if (level := there.settings["wal_level"]) != "logical":
        yield TargetUnfit(
            node,
            "reverse_wal_level",
            f"wal_level = {level}, and a reverse needs logical",
            hint="run ALTER SYSTEM SET wal_level = logical there and restart the server, "
            + _WITHOUT,
        )
    if not used.may_replicate:
        user = context.topology.database.user
        yield TargetUnfit(
            node,
            "reverse_rights",
            f"{user} lacks REPLICATION there, and a reverse needs a slot",
            hint=f"run as a superuser there: ALTER ROLE {quote_identifier(user)} REPLICATION, "
            + _WITHOUT,
        )
    for name, taken, code in (
        ("max_wal_senders", used.senders, "reverse_wal_senders"),
        ("max_replication_slots", used.slots, "reverse_slots"),
    ):
        most = there.number(name)
        if taken >= most:
            yield TargetUnfit(
                node,
                code,
                f"{name} = {most}, and all are in use; a reverse needs one",
                hint="run `shardctl moves finish` for a move that need not be reversed any more, "
                f"or ALTER SYSTEM SET {name} = {taken + 1} and restart the server, {_WITHOUT}",
            )
