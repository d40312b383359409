"""The guard in the source: a session that undoes a cutover whose time is up, whoever is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.access import fence
from shardctl.access.fence import Closing
from shardctl.moves import undoing

if TYPE_CHECKING:
    from shardctl.moves.budget import Budget
    from shardctl.moves.world import World
    from shardctl.postgres.connection import Connection


def arm(world: World, budget: Budget, *, guards_s: float) -> None:
    """Let the source itself lift the fence when the budget ends, whatever becomes of this process.

    A backend finishes its statement even when its client is gone. Where writes alone are refused,
    and the move is decided then, reads are to end when the poolers' guards have routed: in
    `guards_s` after that.
    """
    source = world.plan.source
    close = Closing(budget.revision + undoing.TO_PROMOTING, guards_s)
    with world.on(source):
        guard = session(world)
        pid = guard.info.backend_pid
        statement = fence.lifting(
            world.plan.id,
            after_s=budget.left(),
            revision=budget.revision,
            close=close if world.plan.options.read_only else None,
        )
        guard.pgconn.send_query(statement.as_string(guard).encode())
        while not _sleeps(world.session(source), pid):
            budget.require("pause")


def session(world: World) -> Connection:
    """Give the session in which the source's guard runs; a login takes long on a far host."""
    if (found := world.sessions.get(f"{world.plan.source}/guard")) and not found.closed:
        return found
    opened = world.session(world.plan.source, "guard")
    opened.execute("SET client_connection_check_interval TO 0")
    # A message to a client that is gone ends the session, and with it what the guard has begun.
    opened.execute("SET client_min_messages TO error")
    return opened


def _sleeps(beside: Connection, pid: int) -> bool:
    row = beside.execute(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return bool(row and row[0])
