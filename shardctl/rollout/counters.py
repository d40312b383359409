"""Error and lock counters of a node: what they are, and whether they jumped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.rollout", "counters.sql")

FEWEST_ROLLBACKS = 100
"""Fewer may be an accident, or a move's own: PostgreSQL does not count by application."""
TIMES = 5
"""A share of failed transactions that is so many times what it was before is a jump."""
SHARE = 0.02
"""A smaller share of failed transactions is none."""
FEWEST_DEADLOCKS = 3
FEWEST_WAITING = 5


class Counters(NamedTuple):
    """A node's counters; all but `waiting` only grow, until they are reset."""

    commits: int
    rollbacks: int
    deadlocks: int
    waiting: int
    """Sessions that have waited for a lock for more than a second."""


def look(session: Connection) -> Counters:
    """Read the counters of the session's database."""
    return Counters(*map(int, queries.one(session, QUERIES["counters"])))


def jumps(before: Counters, now: Counters) -> Iterator[str]:
    """Name what has jumped since `before`; pure.

    >>> list(jumps(Counters(1000, 5, 0, 0), Counters(1100, 165, 0, 9)))
    ['160 of 260 transactions failed (0.5% before)', '9 sessions wait for locks (0 before)']
    >>> list(jumps(Counters(1000, 500, 0, 0), Counters(1100, 660, 2, 4)))
    []
    """
    failed = now.rollbacks - before.rollbacks
    all_now = failed + now.commits - before.commits
    share = before.rollbacks / max(1, before.commits + before.rollbacks)
    # Counters that were reset in between show nothing.
    if failed >= FEWEST_ROLLBACKS and failed > max(TIMES * share, SHARE) * all_now:
        yield f"{failed:,} of {all_now:,} transactions failed ({share:.1%} before)"
    deadlocks = now.deadlocks - before.deadlocks
    if deadlocks >= FEWEST_DEADLOCKS:
        yield f"{deadlocks:,} deadlocks"
    if now.waiting - before.waiting >= FEWEST_WAITING:
        yield f"{now.waiting:,} sessions wait for locks ({before.waiting:,} before)"
