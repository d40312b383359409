"""What a change that was begun on a node has left there, as errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import Incomplete, Refused, ShardctlError
from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeLost, is_lost
from shardctl.provision.failures import ShardFailed
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.provision.apply import Applied
    from shardctl.provision.plan import NodePlan


def node_unfinished(node: str, planned: int, left: Sequence[int]) -> Incomplete:
    """Report what was begun on a node and not finished there."""
    shards = (
        f"; shards {ranges.of(left)} remain"
        if left
        else "; the objects that all shards share remain"
    )
    return Incomplete(
        "node_unfinished",
        f"node {node}: {planned - len(left):,} of {planned:,} shards are finished{shards}",
        hint="run the same command again: it does only the rest",
    )


def errors_of(plan: NodePlan, applied: Applied) -> list[ShardctlError]:
    """Describe what failed on a node: each cause once, then how much is left."""
    by_cause: dict[str, ShardctlError] = {}
    for cause in applied.errors:
        error = as_ours(plan.node, cause)
        by_cause.setdefault(error.cause if isinstance(error, ShardFailed) else error.message, error)
    if not by_cause and not applied.left:
        return []
    return [*by_cause.values(), node_unfinished(plan.node, len(plan.shards), applied.left)]


def as_ours(node: str, error: Exception) -> ShardctlError:
    """Give a database's error its node; raise any other exception, which is a bug."""
    if isinstance(error, ShardctlError):
        return error
    if isinstance(error, psycopg.Error) and is_lost(error):
        return NodeLost(node, reason_of(error))
    if isinstance(error, psycopg.Error):
        return Refused(
            "node_failed",
            f"node {node}: {reason_of(error)}",
            hint="fix the cause, then run the same command again",
        )
    raise error
