"""What manages the source besides shardctl: Patroni, which drops slots that it does not know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardctl.moves.plan import SourceUnfit
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection


def look(context: Context) -> bool | None:
    """Ask the source whether Patroni, if it manages it, is paused; None without one."""
    return look_for_patroni(context.session)


def look_for_patroni(session: Connection) -> bool | None:
    """Return whether Patroni, which manages the session's server, is paused; None without one.

    It is seen by its session, which it has as long as it runs, or by its file together with a
    server that was started as it does: clones have the file, too. False where the role may not read
    that.
    """
    at_work, started, may_read = queries.one(session, QUERIES["patroni"])
    (kept,) = queries.one(session, QUERIES["patroni_settings"]) if may_read else (None,)
    if not at_work and not (started and kept is not None):
        return None
    try:
        values = json.loads(kept or "{}")
    except ValueError:  # it is being written at this moment
        return False
    return isinstance(values, dict) and values.get("pause") is True


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Find a Patroni that is at work: it may also drop the move's slot, which it does not know."""
    plan = context.plan
    if context.need(look) is False and not plan.options.ignore_standby:
        yield SourceUnfit(
            plan.source,
            "patroni_failover",
            "Patroni manages it and is not paused: it may drop the move's replication slot, or "
            "promote a standby, which ignores the fence",
            hint="run `patronictl pause --wait`, and `patronictl resume` after the move; or give "
            "--ignore-standby if failover is disabled in another way",
        )


def notes(context: Context) -> Iterator[str]:
    """Report what the operator has to do with Patroni after the move."""
    plan, paused = context.plan, context.of(look)
    if paused is not None:
        yield (
            f"Patroni manages node {plan.source} and is paused: run `patronictl resume` after the "
            "move"
            if paused
            else f"Patroni manages node {plan.source}; shardctl takes it for paused "
            "(--ignore-standby)"
        )
        yield (
            f"Patroni will not manage node {plan.target}: give it a Patroni with a scope of its own"
        )
