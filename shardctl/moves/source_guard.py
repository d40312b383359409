"""The guard in the source: a session that undoes a cutover whose time is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.moves.context import Use

if TYPE_CHECKING:
    from shardctl.moves.attempt import Attempt
    from shardctl.moves.context import MoveContext
    from shardctl.postgres.connection import Connection


def arm(at: Attempt) -> None:
    """Start the statement with which the source lifts the fence when the budget ends.

    A backend finishes its statement even when its client is gone. Raises BudgetSpent, Interrupted.
    """
    budget, source = at.budget, at.plan.source
    stop = next(one.name for one in at.cutover.undoable if one.may_stop)
    with at.context.on(source):
        guard = session(at.context)
        pid = guard.info.backend_pid
        statement = fence.lifting(at.plan.id, after_s=budget.left(), revision=budget.revision)
        guard.pgconn.send_query(statement.as_string(guard).encode())
        while not _sleeps(at.source, pid):
            budget.require(stop)


def session(context: MoveContext) -> Connection:
    """Return the session of the source's guard, opened early: a remote login takes long."""
    source = context.plan.source
    if (found := context.open_session(source, Use.guard)) is not None:
        return found
    opened = context.session(source, Use.guard)
    opened.execute("SET client_connection_check_interval TO 0")
    # A message to a lost client ends the session, and the guard's statement with it.
    opened.execute("SET client_min_messages TO error")
    return opened


def _sleeps(beside: Connection, pid: int) -> bool:
    row = beside.execute(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return bool(row and row[0])
