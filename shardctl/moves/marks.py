"""Marks of streamed moves in `shardctl.stream`.

A mark that the source gets arrives on the target behind all rows that were committed before it.
A mark that shardctl puts on the target says what a step has made there: so a stream goes on from
the copy, by the one subscription that has followed since then. PostgreSQL keeps with a subscription
how far it has come, and a second one on the same slot would apply again what the first has applied
and not yet confirmed.

A stream overtakes the source's standbys: a decision can be on the target while a standby that may
be promoted lacks it. So these must have the fence and the decision, too.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from psycopg.types.json import Jsonb

from shardctl.access import stream_fence
from shardctl.errors import Refused, ShardctlError
from shardctl.libpq import Sent
from shardctl.meter import listed
from shardctl.moves import ddl
from shardctl.moves.context import Use
from shardctl.moves.plan import COPY_INSTEAD
from shardctl.postgres import queries, slots
from shardctl.postgres.logical import publication, subscription
from shardctl.postgres.logical.subscription import Progress
from shardctl.postgres.queries import literals
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection


QUERIES = queries.load("shardctl.moves", "stream.sql")

PING, DECISION = "ping", "decision"
ARRIVED = "arrived"
"""The target's own mark, on its disk, that it has everything up to the fence's mark."""
COPIED = "copied"
"""The target's mark when it has the rows; its note has the timeline of the target's server."""
SUBSCRIBED = "subscribed"
"""The target's mark from the moment when its subscription follows; the note has the OID of that.

Only that subscription knows how far it has come: another one would apply changes again.
"""
TIMELINE = "timeline"
REHEARSED = -1
"""The attempt of a mark that is never committed."""
STEPS = 0
"""The attempt of all marks that are not of a cutover."""

_POLL = 0.001


class CopyLost(Refused):
    """A stream that cannot go on from its copy, which is made again; that ends a reverse."""

    def __init__(self, code: str, message: str, plan: MovePlan) -> None:
        super().__init__(
            code, message, hint="run `shardctl moves resume`: shardctl copies the shards again"
        )
        if plan.reverses is not None:
            self.resumable = False
            self.hint = f"run `shardctl moves abort {plan.id}`, then {COPY_INSTEAD}"


def put(
    session: Connection,
    move: str,
    what: str,
    *,
    attempt: int = STEPS,
    note: dict[str, Any] | None = None,
) -> None:
    """Put a mark; one that is there gets the time of now."""
    given = {"move": move, "attempt": attempt, "what": what}
    session.execute(QUERIES["put"], given | {"note": None if note is None else Jsonb(note)})


def last(session: Connection, move: str, what: str) -> dict[str, Any] | None:
    """Give the note of the last mark of a kind; None where there is none."""
    row = session.execute(QUERIES["last"], {"move": move, "what": what}).fetchone()
    return None if row is None else row[0]


def seen(session: Connection, move: str, what: str, *, attempt: int = STEPS) -> bool:
    """Return whether a mark is there."""
    given = {"move": move, "attempt": attempt, "what": what}
    return session.execute(QUERIES["seen"], given).fetchone() == (True,)


def note_timeline(session: Connection, move: str, *, attempt: int = STEPS) -> None:
    """Put the mark by which a failover of the source is noticed: its timeline."""
    put(session, move, PING, attempt=attempt, note={TIMELINE: timeline(session)})


def is_on_its_timeline(session: Connection, move: str) -> bool:
    """Return whether the source is the server that the last such mark was put on."""
    noted = last(session, move, PING)
    return noted is not None and noted.get(TIMELINE) == timeline(session)


def revoke(session: Connection, move: str) -> None:
    """Remove the decision from a target that has not claimed, so that no later claim has it."""
    claimed = [state.value for state in MoveState if state.claimed_by_target]
    with session.transaction():
        given = {"move": move, "claimed": claimed}
        if session.execute(QUERIES["unclaimed"], given).fetchone() is not None:
            forget(session, move, DECISION)


def forget(session: Connection, move: str, what: str | None = None) -> None:
    """Remove the marks of a move: all, or those of a kind."""
    session.execute(QUERIES["forget"], {"move": move, "what": what})


def note_copied(context: MoveContext) -> None:
    """Note on the target that it has the rows, and with which publication the stream goes on."""
    plan = context.plan
    with context.using(plan.source) as session:
        published = publication.oid(session, plan.slot)
    with context.using(plan.target) as there:
        note = {TIMELINE: timeline(there), "publication": published}
        put(there, plan.id, COPIED, note=note)


def begin(session: Connection, plan: MovePlan) -> None:
    """Let the target's subscription follow, and note in the same transaction that it does."""
    with session.transaction():
        subscription.enable(session, plan.slot)
        if not seen(session, plan.id, SUBSCRIBED):
            note = {"oid": subscription.oid(session, plan.slot)}
            put(session, plan.id, SUBSCRIBED, note=note)


def is_dropped(session: Connection, plan: MovePlan) -> bool:
    """Return whether the subscription that has followed is gone; another may have its name."""
    noted = last(session, plan.id, SUBSCRIBED)
    return noted is not None and bool(noted["oid"] != subscription.oid(session, plan.slot))


def is_copied(context: MoveContext) -> bool:
    """Return whether the target has the copy, from which its subscription can go on."""
    plan = context.plan
    try:
        with context.using(plan.target) as there:
            require_copy(there, plan)
        require_publication(context)
    except CopyLost:
        return False
    return True


def require_subscription(session: Connection, plan: MovePlan) -> None:
    """See that the subscription that has followed is there; raises subscription_gone."""
    if is_dropped(session, plan):
        raise CopyLost(
            "subscription_gone",
            f"node {plan.target}: subscription {plan.slot} was dropped after it had begun to "
            f"follow node {plan.source}, and its position in the stream is lost with it",
            plan,
        )


def require_publication(context: MoveContext) -> None:
    """See that the source has the publication with which it was copied; raises publication_gone."""
    plan = context.plan
    with context.using(plan.target) as session:
        noted = last(session, plan.id, COPIED)
    with context.using(plan.source) as session:
        published = publication.oid(session, plan.slot)
    if noted is not None and noted.get("publication") != published:
        raise CopyLost(
            "publication_gone",
            f"node {plan.source}: publication {plan.slot} of the move was dropped, and the stream "
            "cannot go on with another one",
            plan,
        )


def require_copy(session: Connection, plan: MovePlan) -> None:
    """Check that the target is the server that has the copy, and its subscription is there.

    A promoted standby of it may lack rows that the source does not send again. Raises
    target_promoted, copy_unknown, subscription_gone.
    """
    copied = last(session, plan.id, COPIED)
    if copied is None:
        raise CopyLost(
            "copy_unknown",
            f"node {plan.target}: its rows of move {plan.id} in shardctl.stream were deleted, so "
            "what it has is unknown",
            plan,
        )
    if copied.get(TIMELINE) != timeline(session):
        raise CopyLost(
            "target_promoted",
            f"node {plan.target}: the server was promoted after move {plan.id} copied to it, so it "
            "may lack rows",
            plan,
        )
    require_subscription(session, plan)


_FAILURES = 3
"""How often a stream breaks off at the same position that is not worth waiting for."""


def trouble(context: MoveContext, before: list[Progress]) -> str:
    """Say why the target does not catch up, as far as both servers know.

    One failure may be a lost connection; a change that cannot be applied fails again. `before` has
    how far the stream was when its position was first seen. Raises slot_gone, publication_gone,
    subscription_gone.
    """
    plan = context.plan
    source = None if context.source_lost else context.open_session(plan.source, Use.work)
    if source is None:
        return ""
    with context.on(plan.source):
        slots.require(source, plan.source, plan.slot)
    require_publication(context)
    target = context.session(plan.target)
    require_subscription(target, plan)
    now = subscription.progress(source, target, plan.slot)
    if now is None or not now.enabled:
        return "the subscription is missing, or disabled"
    if not before or before[0].confirmed != now.confirmed:
        before[:] = [now]
    failures = now.errors - before[0].errors
    if failures < _FAILURES:
        return ""
    return f"it failed {failures} times at position {now.confirmed}"


_LOOK_S = 1.0
_NEAR_S = 0.5
"""The time that a mark may take through the stream of a target that is near."""
_LONGEST_POLL = 0.02
"""A mark is looked for more often at first: its way through the stream is measured by that."""


class MarkNotSeen(ShardctlError):
    """A mark that did not come through the stream in time."""

    def __init__(self, node: str, what: str, why: str) -> None:
        super().__init__(
            f"node {node}: replication from the source did not reach mark `{what}` in time"
            + (f": {why}" if why else ""),
            hint="fix what the log of that node's server names, with the table, as the reason why "
            "its subscription is behind, then run `shardctl moves resume`",
        )


def wait_for(context: MoveContext, attempt: int, what: str, *, deadline: float) -> None:
    """Wait until a mark has come through the stream; raises MarkNotSeen, slot_gone.

    A worker that fails to apply a row fails again and again, so that is not waited for.
    """
    plan, before = context.plan, list[Progress]()
    began = time.monotonic()
    look_at = began + _LOOK_S
    with context.using(plan.target, Use.lock) as session:
        while not seen(session, plan.id, what, attempt=attempt):
            now = time.monotonic()
            if now > min(deadline, look_at):
                why = trouble(context, before)
                if why or now > deadline:
                    raise MarkNotSeen(plan.target, what, why)
                look_at = now + _LOOK_S
            time.sleep(min(_LONGEST_POLL, (now - began) / 10))


def send(context: MoveContext, what: str) -> str:
    """Put a mark of its own on the source; return its name, which begins with `what`."""
    mark = f"{what} {secrets.token_hex(4)}"
    with context.using(context.plan.source) as session:
        put(session, context.plan.id, mark)
    return mark


def wait_for_sent(context: MoveContext, mark: str, *, deadline: float) -> None:
    """Wait until a mark that was sent has come; raises MarkNotSeen, slot_gone, StructureChanged."""
    try:
        wait_for(context, STEPS, mark, deadline=deadline)
    except MarkNotSeen:
        ddl.require_same(context, context.plan.schemas)  # a stream stops at DDL
        raise


def come_near(context: MoveContext, what: str, *, seconds: float) -> str:
    """Wait until a mark comes through quickly; return its name, which begins with `what`.

    Raises MarkNotSeen, StructureChanged.
    """
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        mark = send(context, what)
        wait_for_sent(context, mark, deadline=until)
        if time.monotonic() - began < _NEAR_S:
            return mark


_AWAIT_S = 1.0
"""How long the target waits before it answers that the mark has not come."""
_PUT, _EXPORTED = 2, -1
"""The statements of the message with the target's mark and with the snapshot."""


def rehearse_fence(context: MoveContext) -> None:
    """Ask for a mark that never comes: what the session reads is in its caches then."""
    fence_snapshot(context, REHEARSED, deadline=time.monotonic())


def expect_fence(context: MoveContext, attempt: int, *, deadline: float) -> None:
    """Let the target wait for the mark of an attempt, if it does not yet, until `deadline`.

    Its session for the snapshot is of no other use before `fence_snapshot`.
    """
    if attempt in context.awaited:
        return
    plan = context.plan
    seconds = max(0.0, min(_AWAIT_S, deadline - time.monotonic()))
    given = literals(move=plan.id, attempt=attempt, subscription=plan.slot, seconds=seconds)
    given |= literals(
        fence=stream_fence.MARK, arrived=ARRIVED, copied=COPIED, subscribed=SUBSCRIBED
    )
    message = QUERIES["await"].format(**given)
    with context.using(plan.target, Use.snapshot) as session:
        context.awaited[attempt] = Sent(session, message)


def fence_snapshot(context: MoveContext, attempt: int, *, deadline: float) -> str | None:
    """Give the snapshot that the target has exported; None where it has not put its mark."""
    expect_fence(context, attempt, deadline=deadline)
    sent, target = context.awaited.pop(attempt), context.plan.target
    with context.on(target):
        found = sent.rows()
        if not found[_PUT]:
            context.session(target, Use.snapshot).rollback()
            return None
        return found[_EXPORTED][0][0]


class StandbysBehind(ShardctlError):
    """Standbys of a source that do not have what must not be lost when they are promoted."""

    def __init__(self, node: str, names: Collection[str], what: str) -> None:
        super().__init__(
            f"node {node}: standbys have not flushed the {what} in time: {listed(sorted(names))}",
            hint="start them, or drop the replication slots of removed standbys, then run "
            "`shardctl moves resume`; if failover is disabled, run `shardctl moves abort` and "
            "start the move again with --ignore-standby",
        )
        self.names = tuple(sorted(names))


def expected_standbys(session: Connection) -> frozenset[str]:
    """Name the standbys that may be promoted; one that is away counts by its slot.

    So does one that `synchronized_standby_slots` names (17 and newer).
    """
    return frozenset(name for (name,) in session.execute(QUERIES["expected"]))


def connected_standbys(session: Connection) -> str:
    """Give what changes whenever another standby has come."""
    return str(queries.one(session, QUERIES["connected"])[0])


def await_flushed(
    session: Connection,
    node: str,
    standbys: Collection[str],
    lsn: str,
    *,
    what: str,
    deadline: float,
) -> None:
    """Wait until all of them have flushed the WAL up to `lsn`; raises StandbysBehind."""
    left = set(standbys)
    while left:
        left -= {name for (name,) in session.execute(QUERIES["flushed"], {"lsn": lsn})}
        if left:
            if time.monotonic() > deadline:
                raise StandbysBehind(node, left, what)
            time.sleep(_POLL)


def position(session: Connection) -> str:
    """Give up to where the WAL is on the disk."""
    return str(queries.one(session, QUERIES["position"])[0])


def timeline(session: Connection) -> str:
    """Give the timeline that a server writes: after a failover it is another."""
    return str(queries.one(session, QUERIES["timeline"])[0])
