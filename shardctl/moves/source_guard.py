"""The guard in the source: a session that undoes a cutover whose time is up, whoever is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.access.fence import Closing
from shardctl.moves import undoing
from shardctl.moves.context import Use

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection


def arm(at: Attempt, *, guards_s: float) -> None:
    """Let the source itself lift the fence when the budget ends, whatever becomes of this process.

    A backend finishes its statement even when its client is gone. Where writes alone are refused,
    and the move is decided then, reads are to end when the poolers' guards have routed: in
    `guards_s` after that. Raises BudgetSpent, Interrupted.
    """
    budget, source = at.budget, at.plan.source
    close = Closing(budget.revision + undoing.TO_PROMOTING, guards_s)
    stop = next(one.name for one in at.cutover.undoable if one.may_stop)
    with at.context.on(source):
        guard = session(at.context)
        pid = guard.info.backend_pid
        statement = fence.lifting(
            at.plan.id,
            after_s=budget.left(),
            revision=budget.revision,
            close=close if at.fence.refuses_writes else None,
        )
        guard.pgconn.send_query(statement.as_string(guard).encode())
        while not _sleeps(at.source, pid):
            budget.require(stop)


def session(context: MoveContext) -> Connection:
    """Give the session in which the source's guard runs; a login takes long on a far host."""
    source = context.plan.source
    if (found := context.open_session(source, Use.guard)) is not None:
        return found
    opened = context.session(source, Use.guard)
    opened.execute("SET client_connection_check_interval TO 0")
    # A message to a client that is gone ends the session, and with it what the guard has begun.
    opened.execute("SET client_min_messages TO error")
    return opened


def _sleeps(beside: Connection, pid: int) -> bool:
    row = beside.execute(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return bool(row and row[0])
