"""The locks of a move on both nodes, looked at in the time of one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.moves.context import Use
from shardctl.postgres.sending import Sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext

_NOTHING = sql.SQL("SELECT 1")


def require(context: MoveContext, *, beside: Callable[[], object] = lambda: None) -> None:
    """Check that both are still held, and do something `beside` meanwhile; raises NodeLost.

    A process that lost one of them must change nothing more.
    """
    sent = []
    try:
        for node in (context.plan.source, context.plan.target):
            with context.on(node):
                sent.append((node, Sent(context.sessions[node, Use.lock], _NOTHING)))
        beside()
    finally:
        for node, one in sent:
            with context.on(node):
                one.rows()
