"""What search_path the server connections behind aliases of shards have: ask several of each."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.checks.poolers_words import RULES, brief, shards_of
from shardctl.pgbouncer.console import CommandRefused, Console, PoolerLost, PoolerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Database, Pooler

_MOST = 40
"""Connections of a pool that are asked; PgBouncer's own `default_pool_size` is 20.

PgBouncer gives the connection first that was given back last, so fewer would always be the same.
"""
_CLIENTS = 40
"""Clients of one user at a time: PgBouncer's own `max_client_conn` is 100."""
_WIDTH = 8
_SECONDS = 2.0
"""How long connections are held, at most: until all have answered."""
_PATH = "SELECT current_setting('search_path') AS path"
_BEGIN = f"BEGIN READ ONLY; {_PATH}"
_END = "ROLLBACK"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the connections of one pool answered; `error` is why they could not be asked.

    `unasked` is how many idle connections were too many to ask.
    """

    alias: str
    user: str
    paths: tuple[str, ...] = ()
    error: str | None = None
    unasked: int = 0


def ask(
    pooler: Pooler,
    database: Database,
    offered: Mapping[str, Alias],
    pools: Sequence[Row],
) -> list[Asked]:
    """Ask the idle connections of every pool for their search_path, as the pool's own user.

    A pool without connections has nothing to ask. The pools of a user who cannot log in are
    answered with one error.
    """
    of_users: dict[str, list[Row]] = defaultdict(list)
    for pool in pools:
        alias = offered.get(pool["database"] or "")
        if alias is not None and not alias.paused and not alias.disabled and _idle(pool):
            of_users[pool["user"] or ""].append(pool)
    found = []
    for first, *others in of_users.values():
        # A user without a password here is refused once and not for each alias.
        asked = _ask(pooler, database, first)
        found.append(asked)
        if asked.error is None and others:
            width = _CLIENTS // min(_MOST, max(map(_idle, others)))
            found += fanout.collect(
                others,
                lambda pool: _ask(pooler, database, pool),
                width=min(_WIDTH, width),
            ).every()
    return found


def judge(pooler: Pooler, asked: Sequence[Asked], entries: Sequence[Entry]) -> Iterator[Finding]:
    """Find aliases whose clients would not be in their shard, and users that were not asked."""
    right = {entry.alias for entry in entries if entry.connect_query is not None}
    wrong = {
        one.alias: one
        for one in asked
        if one.alias in right and any(_schema(path) != one.alias for path in one.paths)
    }
    if wrong:
        aliases = sorted(wrong)
        first = wrong[aliases[0]]
        paths = [path for path in first.paths if _schema(path) != first.alias]
        yield RULES.finding(
            "search_path",
            pooler=pooler.name,
            shards=shards_of(aliases, entries),
            object=brief(aliases),
            path=paths[0] or "empty",
            count=len(paths),
            all=len(first.paths),
            user=first.user,
            first=first.alias,
        )
    if unasked := [one for one in asked if one.alias in right and one.unasked]:
        all_idle = sum(len(one.paths) + one.unasked for one in unasked)
        yield RULES.finding(
            "search_path_unasked",
            pooler=pooler.name,
            object=brief(sorted({one.alias for one in unasked})),
            count=sum(one.unasked for one in unasked),
            all=all_idle,
        )
    for user, error in {one.user: one.error for one in asked if one.error}.items():
        yield RULES.finding(
            "search_path_unknown",
            pooler=pooler.name,
            object=f"aliases of {user}",
            user=user,
            error=error,
            address=f"{pooler.host}:{pooler.port}",
        )


def _ask(pooler: Pooler, database: Database, pool: Row) -> Asked:
    """Ask the idle connections of a pool."""
    alias, user = pool["database"] or "", pool["user"] or ""
    alone = pool.get("pool_mode") == "statement"  # PgBouncer ends connections for a BEGIN there
    idle = _idle(pool)
    sessions: list[Console] = []
    paths: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            for _ in range(min(idle, 1 if alone else _MOST)):
                session = Console(pooler, database, purpose=None, dbname=alias, user=user)
                sessions.append(stack.enter_context(session))
        except PoolerUnavailable as error:
            if not sessions:
                return Asked(alias, user, error=error.reason)
            # It takes no more clients.
        try:
            _read(sessions, paths, alone=alone)
        except (PoolerLost, CommandRefused) as error:
            return Asked(alias, user, tuple(paths), error.reason)
    return Asked(alias, user, tuple(paths), unasked=idle - len(sessions))


def _read(sessions: Sequence[Console], paths: list[str], *, alone: bool) -> None:
    """Hold a connection for each session, in a transaction, and give them back.

    All begin before one ends, so that each has a connection of its own. Raises PoolerLost,
    CommandRefused.
    """
    until = time.monotonic() + _SECONDS
    held: list[Console] = []
    for session in sessions:
        session.send(_PATH if alone else _BEGIN)
    try:
        for session in sessions:
            try:
                (row,) = session.finish(seconds=until - time.monotonic())
            except PoolerLost:
                if not paths:
                    raise
                continue  # clients have taken the connection in the meantime
            paths.append(row["path"] or "")
            held.append(session)
    finally:  # or PgBouncer would end the connections that were asked
        ending = [] if alone else held
        for session in ending:
            session.send(_END)
        for session in ending:
            session.finish(seconds=_SECONDS)


def _idle(pool: Row) -> int:
    return sum(int(pool.get(state) or 0) for state in ("sv_idle", "sv_used"))


def _schema(path: str) -> str:
    """Take the quotes off a search_path of one schema; aliases have no quotes of their own.

    >>> _schema('"Shard-5"'), _schema("shard5"), _schema('"$user", public')
    ('Shard-5', 'shard5', '$user", public')
    """
    return path.strip('"')
