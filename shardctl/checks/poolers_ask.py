"""Logins through a pooler as applications make them, and in which schema its connections are."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl import fanout
from shardctl.checks.check import ERROR, NOTE, Rule, Rules
from shardctl.meter import listed
from shardctl.pgbouncer.console import (
    CommandRefused,
    Console,
    PoolerLost,
    PoolerUnavailable,
    is_of_pooler,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, View
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Database, NodeName, Pooler, ShardId

_MOST = 40
"""Connections of a pool that are asked; PgBouncer's own `default_pool_size` is 20.

PgBouncer gives the connection first that was given back last, so fewer would always be the same.
"""
_CLIENTS = 40
"""Clients of one user at a time: PgBouncer's own `max_client_conn` is 100."""
_WIDTH = 8
_LOGIN_S = 5.0
_HELD_S = 2.0
"""How long connections are held, at most: until all have answered."""
_PATH = "SELECT current_setting('search_path') AS path"
_BEGIN = f"BEGIN READ ONLY; {_PATH}"
_END = "ROLLBACK"

RULES = Rules(
    "poolers",
    {
        "login_refused": Rule(
            ERROR,
            "{reason}",
            "role {role} can log in to node {where}",
            "set the role's SCRAM secret on the node to the pooler's "
            "(docs/howto/change-passwords.md), or allow the role in the node's pg_hba.conf",
        ),
        "search_path": Rule(
            ERROR,
            "search_path is {path} on {count} of {all} connections of user {user}",
            "{first}",
            'run RECONNECT "{first}" on the pooler\'s console; then find the client that sends '
            "RESET ALL, DISCARD ALL or SET search_path (docs/poolers.md, drivers)",
        ),
        "unasked": Rule(
            NOTE,
            "cannot log in as {object}: {reason}",
            "a login to each node, and the search_path of each alias in use",
            "add the password of {object} for {address} to ~/.pgpass",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user's connections to an alias answered: `paths` are their search_path.

    `refused` is the node's word where it refused the login, `untried` why none was made.
    """

    alias: str
    user: str
    paths: tuple[str, ...] = ()
    refused: str | None = None
    untried: str | None = None


def ask(
    database: Database,
    pooler: Pooler,
    offered: Mapping[str, Alias],
    pools: Sequence[Row],
    entries: Sequence[Entry],
) -> list[Asked]:
    """Log in as each application's role to each node with shards, and as the users of pools.

    The idle connections of a pool are all asked. Aliases that wait or lead elsewhere are left out,
    which other findings report. Passwords are those that libpq finds in a passfile.
    """
    wanted: dict[tuple[str, str], int] = {}
    nodes: set[NodeName] = set()
    schemas = set()
    for entry in entries:
        there = offered.get(entry.alias)
        if there is None or there.paused or there.disabled or not entry.shards:
            continue
        if entry.connect_query is not None:
            schemas.add(entry.alias)
        leads = (there.host, there.port, there.dbname) == (entry.host, entry.port, entry.dbname)
        if leads and entry.node not in nodes:
            nodes.add(entry.node)
            wanted |= {(role, entry.alias): 1 for role in database.app_roles}
    for pool in pools:
        idle = sum(int(pool.get(state) or 0) for state in ("sv_idle", "sv_used"))
        if pool["database"] in schemas and idle:
            # PgBouncer ends connections for a BEGIN in statement pooling.
            most = 1 if pool.get("pool_mode") == "statement" else _MOST
            wanted[pool["user"] or "", pool["database"] or ""] = min(idle, most)
    of_users: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for user, alias in wanted:
        of_users[user].append((user, alias))
    one, asked = partial(_ask_pool, pooler, database, wanted), []
    for first, *others in of_users.values():
        # A user without a password here is refused once and not for each alias.
        asked.append(one(first))
        if asked[-1].untried is None and others:
            width = min(_WIDTH, _CLIENTS // max(wanted[other] for other in others))
            asked += fanout.collect(others, one, width=width).every()
    return asked


def _ask_pool(
    pooler: Pooler,
    database: Database,
    wanted: Mapping[tuple[str, str], int],
    pool: tuple[str, str],
) -> Asked:
    """Ask so many connections of a user and an alias."""
    user, alias = pool
    sessions: list[Console] = []
    paths: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            for _ in range(wanted[pool]):
                session = Console(pooler, database, purpose=None, dbname=alias, user=user)
                sessions.append(stack.enter_context(session))
        except PoolerUnavailable as error:
            if not sessions:
                return _unanswered(alias, user, error.reason)
            # It takes no more clients.
        try:
            _read(sessions, paths)
        except CommandRefused as error:
            return _unanswered(alias, user, error.reason)
        except PoolerLost as error:  # as of a pooler that restarts
            return Asked(alias, user, untried=error.reason)
    return Asked(alias, user, tuple(paths))


def _unanswered(alias: str, user: str, reason: str) -> Asked:
    said = reason.partition("FATAL: ")[2].strip() or reason
    if is_of_pooler(said):
        return Asked(alias, user, untried=said)
    return Asked(alias, user, refused=said)


def _read(sessions: Sequence[Console], paths: list[str]) -> None:
    """Hold a connection for each session, in a transaction, and give them back.

    All begin before one ends, so that each has a connection of its own. Raises PoolerLost,
    CommandRefused.
    """
    alone = len(sessions) == 1
    until = time.monotonic() + (_LOGIN_S if alone else _HELD_S)
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
            session.finish(seconds=_HELD_S)


def judge(
    view: View[Any], pooler: Pooler, asked: Sequence[Asked], entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find roles that a node rejects, aliases outside their shard, and users not asked."""
    leads = {entry.alias: entry for entry in entries}
    refused = {(one.user, leads[one.alias].node): one.refused for one in asked if one.refused}
    for (role, node), reason in refused.items():
        if node in view.basics:  # `connection` reports the others
            yield RULES.finding(
                "login_refused",
                pooler=pooler.name,
                shards=_shards(one for one in entries if one.node == node),
                object=f"{role} on node {node}",
                reason=reason,
                role=role,
                where=node,
            )
    wrong = {
        one.alias: one
        for one in asked
        if leads[one.alias].connect_query is not None
        and any(_schema(path) != one.alias for path in one.paths)
    }
    if wrong:
        aliases = sorted(wrong)
        first = wrong[aliases[0]]
        paths = [path for path in first.paths if _schema(path) != first.alias]
        yield RULES.finding(
            "search_path",
            pooler=pooler.name,
            shards=_shards(leads[alias] for alias in aliases),
            object=listed(aliases, most=3),
            path=paths[0] or "empty",
            count=len(paths),
            all=len(first.paths),
            user=first.user,
            first=first.alias,
        )
    for user, reason in {one.user: one.untried for one in asked if one.untried}.items():
        address = f"{pooler.host}:{pooler.port}"
        yield RULES.finding(
            "unasked", pooler=pooler.name, object=user, reason=reason, address=address
        )


def _shards(entries: Iterable[Entry]) -> list[ShardId]:
    return sorted({shard for entry in entries for shard in entry.shards})


def _schema(path: str) -> str:
    """Take the quotes off a search_path of one schema; aliases have no quotes of their own.

    >>> _schema('"Shard-5"'), _schema("shard5"), _schema('"$user", public')
    ('Shard-5', 'shard5', '$user", public')
    """
    return path.strip('"')
