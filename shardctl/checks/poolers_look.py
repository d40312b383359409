"""What `verify` sees of a pooler: its console's and its databases' answers, and its file."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.pgbouncer import apply, logins, render
from shardctl.pgbouncer.console import CommandRefused, Console, PoolerLost, PoolerUnavailable
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.hosts.host import Host
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.logins import Attempt
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Database, NodeName, Pooler, Topology


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
        asked = _ask_alias(pooler, database, first)
        found.append(asked)
        if asked.error is None and others:
            width = _CLIENTS // min(_MOST, max(map(_idle, others)))
            found += fanout.collect(
                others,
                lambda pool: _ask_alias(pooler, database, pool),
                width=min(_WIDTH, width),
            ).every()
    return found


def _ask_alias(pooler: Pooler, database: Database, pool: Row) -> Asked:
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


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen of a pooler: only `error` where its console cannot be used.

    `refused` is why `apply` would not change it, `text` the file of aliases.
    """

    error: ShardctlError | None
    refused: ShardctlError | None = None
    text: str | None = None
    seen: apply.Seen | None = None
    """The same as `apply` sees it, None where it is refused."""
    version: str = ""
    held: bool = False
    """Whether the whole pooler is paused."""
    offered: Mapping[str, Alias] = field(default_factory=dict)
    servers: Sequence[Row] = ()
    pools: Sequence[Row] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the pooler knows of the names of hosts."""
    logins: Mapping[NodeName, Sequence[Attempt]] = field(default_factory=dict)
    """Logins of applications' roles to each node that has shards."""
    secrets: Mapping[str, str | None] | None = None
    """Digests of SCRAM secrets by user, None of another kind; None where no file has them."""
    asked: Sequence[Asked] = ()


def look(topology: Topology, pooler: Pooler) -> Looked:
    """Ask a pooler's console and read its file; what goes wrong is in the result."""
    purpose = lock.purpose("verify")
    refused: ShardctlError | None = None
    text: str | None = None
    seen: apply.Seen | None = None
    host: Host | None = None
    try:
        host = host_of(pooler)
        text = files.read(host, pooler.databases_file, user=pooler.os_user)
        seen = apply.observe(topology, pooler, host, purpose=purpose)
    except PoolerUnavailable as error:
        return Looked(error)
    except ShardctlError as error:
        refused = error
    try:
        with Console(pooler, topology.database, purpose=purpose) as console:
            found = Looked(
                error=None,
                refused=refused,
                text=text,
                seen=seen,
                version=console.version(),
                held=console.held(),
                offered=console.databases(),
                servers=console.servers(),
                pools=console.pools(),
                config=console.config(),
                addresses=console.resolved(),
            )
    except ShardctlError as error:
        return Looked(error)
    entries = render.entries(topology, pooler)
    return replace(
        found,
        logins=_log_in(topology, pooler, found, entries),
        secrets=logins.secrets(host, pooler, found.config) if host is not None else None,
        asked=_ask(topology, pooler, found, entries),
    )


def _log_in(
    topology: Topology, pooler: Pooler, found: Looked, entries: Sequence[Entry]
) -> dict[NodeName, list[Attempt]]:
    """Log in as every application's role, to one alias of each node that has shards.

    Another finding reports an alias that waits, or leads elsewhere.
    """
    database = topology.database
    fit: dict[NodeName, str] = {}
    for entry in entries:
        there = found.offered.get(entry.alias)
        if there is None or there.paused or there.disabled or found.held or not entry.shards:
            continue
        if (there.host, there.port, there.dbname) == (entry.host, entry.port, entry.dbname):
            fit.setdefault(entry.node, entry.alias)
    return {
        node: [logins.attempt(pooler, database, alias, r) for r in database.app_roles]
        for node, alias in fit.items()
    }


def _ask(
    topology: Topology, pooler: Pooler, looked: Looked, entries: Sequence[Entry]
) -> list[Asked]:
    """Ask through the aliases of shards, unless their clients wait."""
    names = {entry.alias for entry in entries if entry.connect_query}
    ours = {name: alias for name, alias in looked.offered.items() if name in names}
    if looked.held or not ours:
        return []
    return ask(pooler, topology.database, ours, looked.pools)
