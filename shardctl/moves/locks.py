"""The locks of a move on both nodes, looked at in the time of one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.moves.context import Use
from shardctl.postgres.sending import Sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext
    from shardctl.topology.model import NodeName

_NOTHING = sql.SQL("SELECT 1")


def require(context: MoveContext, *, beside: Callable[[], object] = lambda: None) -> None:
    """Check that both are still held, and do something `beside` meanwhile; raises NodeLost.

    A process that lost one of them must change nothing more.
    """
    sent: list[tuple[NodeName, Sent]] = []
    problems: list[ShardctlError] = []
    try:
        for node in (context.plan.source, context.plan.target):
            with context.on(node):
                sent.append((node, Sent(context.sessions[node, Use.lock], _NOTHING)))
        beside()
    finally:
        for node, one in sent:  # an answer that nobody reads would meet the session's next request
            try:
                with context.on(node):
                    one.rows()
            except ShardctlError as error:
                problems.append(error)
    if problems:
        raise problems[0]
