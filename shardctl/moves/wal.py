"""The WAL that a source keeps for a move: the room on its disk, the limit, and what is held back.

Nothing of shardctl's can be slowed down to hold back less: see ADR 30.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, files
from shardctl.hosts.reach import host_of, is_reached
from shardctl.meter import BYTES, Held
from shardctl.moves.context import Use
from shardctl.moves.plan import SourceUnfit
from shardctl.postgres import slots
from shardctl.postgres.logical import publication, subscription
from shardctl.state import journal, leash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from shardctl.fanout import Progress
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName


_DIRECTORY = "SELECT setting FROM pg_settings WHERE name = 'data_directory'"
SHARE = 10
"""A move may hold back 1/SHARE of the free disk, unless `max_wal` gives a limit."""
MB = 1 << 20
_ENDED_S = 10.0
_POLL_S = 0.02


class WalLimitReached(ShardctlError):
    """A move whose slot reached its limit of WAL; shardctl aborts it."""

    def __init__(self, node: str, move: str, reported: dict[str, int]) -> None:
        held, limit = reported["held_bytes"], reported["limit_bytes"]
        super().__init__(
            f"node {node}: move {move} held back {megabytes(held)} of WAL, more than its limit of "
            f"{megabytes(limit)}: node {node} dropped the slot, and shardctl aborts the move",
            hint="check why the target did not keep up (its disk, the network, errors in its log), "
            "then start the move again, with a larger --max-wal if needed",
        )


@dataclass(frozen=True, slots=True)
class Wal:
    """The room on the disk of a source's WAL.

    `free_bytes` is None where its host does not report it; `unknown` is why.
    """

    free_bytes: int | None
    unknown: str

    def limit(self, plan: MovePlan) -> int | None:
        """Return what the move may hold back, in bytes; None where that is unknown."""
        if plan.options.max_wal_bytes is not None or self.free_bytes is None:
            return plan.options.max_wal_bytes
        return self.free_bytes // SHARE


def megabytes(count: float) -> str:
    """Format bytes as megabytes.

    >>> megabytes(64 << 20), megabytes(20 << 30), megabytes(1000)
    ('64 MB', '20,480 MB', '1 MB')
    """
    return f"{max(1, round(count / MB)):,} MB"


def look(node: Node, session: Connection) -> Wal:
    """Query a source and its host; `session` is with the source, a primary."""
    row = session.execute(_DIRECTORY).fetchone()
    return Wal(*free_bytes(node, row and row[0]))


def judge(plan: MovePlan, wal: Wal) -> Iterator[SourceUnfit]:
    """Refuse a limit that is unknown, or for which the source's disk has no room."""
    limit, free = wal.limit(plan), wal.free_bytes
    if limit is None:
        yield SourceUnfit(
            plan.source,
            "wal_room_unknown",
            f"cannot measure the free space for WAL on its disk: {wal.unknown}",
            hint="give the most WAL that it may keep for the move, for example --max-wal 20GB, or "
            "max_wal under `move:` in the topology",
        )
    elif free is not None and limit > free:
        yield SourceUnfit(
            plan.source,
            "wal_room",
            f"it may keep {megabytes(limit)} of WAL for the move (max_wal), but its disk has only "
            f"{megabytes(free)} free",
            hint="free space there, or give a smaller --max-wal",
        )


def notes(plan: MovePlan, wal: Wal) -> Iterator[str]:
    """Report the limit of the WAL that the source keeps."""
    limit = wal.limit(plan)
    if limit is not None:
        yield (
            f"node {plan.source} keeps at most {megabytes(limit)} of WAL for the move, then the "
            "move aborts"
        )


def settled(plan: MovePlan, node: Node, session: Connection) -> MovePlan:
    """Return the plan with its limit in bytes, for the journal; `session` is with the source.

    Raises SourceUnfit where the free space is unknown and no limit is given.
    """
    if plan.options.max_wal_bytes is not None:
        return plan
    wal = look(node, session)
    slot = slots.look(session, plan.slot)
    for problem in judge(plan, wal):
        raise problem
    # What the move's slot already holds back counts as free.
    free = (wal.free_bytes or 0) + (slot.held_bytes if slot is not None else 0)
    return replace(plan, options=replace(plan.options, max_wal_bytes=free // SHARE))


def exceeding(session: Connection, plan: MovePlan) -> int | None:
    """Return the bytes that the move's slot holds back if they exceed its limit, else None."""
    limit, slot = plan.options.max_wal_bytes, slots.look(session, plan.slot)
    held = 0 if slot is None else slot.held_bytes
    return None if limit is None or held <= limit else held


def require_kept(session: Connection, plan: MovePlan) -> None:
    """See that the limit leaves a reverse its slot, which nothing replaces; raises reverse_wal."""
    if plan.reverses is not None and (held := exceeding(session, plan)):
        raise SourceUnfit(
            plan.source,
            "reverse_wal",
            f"it holds back {megabytes(held)} of WAL for the reverse already, and at a limit of "
            f"{megabytes(plan.options.max_wal_bytes or 0)} it drops that",
            hint="give a larger --max-wal, for example twice as much as is held back",
        )


def forget(session: Connection, move: Move) -> None:
    """Delete the exceeded limit from the journal: the copy is made again."""
    rest = {name: value for name, value in (move.report or {}).items() if name != journal.WAL_LIMIT}
    journal.note(session, move, report=rest)


def reached(context: MoveContext) -> WalLimitReached | None:
    """Return the exceeded limit from the source's journal, if its guard has dropped the slot."""
    source, slot = context.plan.source, context.plan.slot
    try:
        with context.using(source) as session:
            gone = slots.look(session, slot) is None
            deadline = time.monotonic() + _ENDED_S
            while gone and leash.is_armed(session, slot) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            move = journal.find(session, context.plan.id)
            reported = None if move is None else journal.wal_limit(move)
    except ShardctlError:  # the original error already reports an unreachable source
        return None
    return None if reported is None else WalLimitReached(source, context.plan.id, reported)


def free_bytes(
    node: Node, directory: str | None, *, inside: str = "pg_wal/."
) -> tuple[int | None, str]:
    """Return the free bytes of the disk with the WAL; or None, and why they are unknown.

    `inside` the data directory is what is asked about; a link there leads to another disk.
    """
    if directory is None:
        return None, "the role may not read data_directory"
    if not is_reached(node):
        return None, "shardctl reaches it only by SQL: the topology has nothing of its host"
    try:
        host = host_of(node)
        account = accounts.account_on(host, node.os_user)
        room = files.disk(host, f"{directory}/{inside}", user=account)
        return room[1], ""
    except ShardctlError as error:
        return None, error.message


CATCHING_UP = "catching up"


def shown(
    context: MoveContext, *, follows: bool = False, gone: Callable[[], None] = lambda: None
) -> AbstractContextManager[Progress]:
    """Give the move's progress, with the WAL that its slot holds back, once it is made.

    `follows` says that the target has a subscription: then its lag is shown, too, and the phase
    CATCHING_UP has what is left of the lag that it began with. `gone` is called when the slot was
    dropped or has lost its WAL: what is made for it is of no use then.
    """
    plan = context.plan
    left: int | None = None

    def look(kept: Progress, session: Connection) -> None:
        nonlocal left
        slot = slots.look(session, plan.slot)
        if slot is None or slot.lost is not None:
            gone()
            return
        lag = slot.lag_bytes if follows else None
        if lag is not None and left is None:
            kept.expect(plan.target, CATCHING_UP, lag, BYTES)
            left = lag
        elif lag is not None and left is not None and lag < left:
            kept.advance(plan.target, left - lag)
            left = lag
        kept.holds(plan.target, Held(slot.held_bytes, plan.options.max_wal_bytes, lag))

    return context.kept_progress(look)


@contextmanager
def slot_required(context: MoveContext) -> Iterator[None]:
    """Report the slot instead of what its loss has ended; raises slot_gone."""
    plan = context.plan
    try:
        yield
    except ShardctlError:
        if (session := context.open_session(plan.source, Use.work)) is not None:
            with context.on(plan.source):
                slots.require(session, plan.source, plan.slot)
        raise


def bound(
    context: MoveContext,
    node: NodeName,
    slot: str,
    limit_bytes: int,
    *,
    keep_s: float | None = None,
) -> None:
    """Bound the WAL that a slot of the move holds back on a node, also before it is made.

    The parameters are those of `leash.arm`, which tells what it raises.
    """
    if (armed := context.sessions.pop((node, Use.leash), None)) is not None:
        armed.close()  # its statement runs until the new one has replaced it
    with context.on(node):
        leash.arm(
            context.session(node, Use.leash),
            context.session(node),
            node,
            move=context.plan.id,
            slot=slot,
            limit_bytes=limit_bytes,
            keep_s=keep_s,
        )


def end_stream(context: MoveContext) -> None:
    """End the stream on the source: drop its slot, with its guard, its role and its publication."""
    plan = context.plan
    with context.using(plan.source) as session:
        slots.drop(session, plan.slot)
        leash.end(session, plan.slot)  # it would see that itself, within a second
        subscription.drop_login(session, plan.slot)
        publication.drop(session, plan.slot)
