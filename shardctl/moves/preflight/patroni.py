"""Patroni, which may manage the source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardctl.moves.plan import SourceUnfit
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context


def look(context: Context) -> bool | None:
    """Return whether Patroni, which manages the source, is paused; None without one.

    It is seen by its session, which it has as long as it runs, or by its file together with a
    server that was started as it does: clones have the file, too. False where the role may not read
    that.
    """
    at_work, started, may_read = queries.one(context.session, QUERIES["patroni"])
    (kept,) = queries.one(context.session, QUERIES["patroni_settings"]) if may_read else (None,)
    if not at_work and not (started and kept is not None):
        return None
    try:
        values = json.loads(kept or "{}")
    except ValueError:  # it is being written at this moment
        return False
    return isinstance(values, dict) and values.get("pause") is True


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse one at work: it drops slots that it does not know, and promotes standbys."""
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
    """Report what the operator has to do after the move."""
    plan = context.plan
    if context.need(look) is not None:
        yield (
            f"Patroni manages node {plan.source}: run `patronictl resume` after the move, and give "
            f"node {plan.target} a Patroni with a scope of its own"
        )
