"""What `verify` sees of a pooler: its console, its file, logins, search_paths; and the rules."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.checks.check import ERROR, NOTE, WARNING, Rule, Rules
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.pgbouncer import apply, faults, render, serving
from shardctl.pgbouncer.console import (
    CommandRefused,
    Console,
    PoolerLost,
    PoolerUnavailable,
    conninfo,
)
from shardctl.state import lock
from shardctl.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding
    from shardctl.hosts.host import Host
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Database, NodeName, Pooler, ShardId, Topology


_SHOWN = 3
APPLY = "`shardctl pgbouncer apply`"
PAGE = "docs/howto/change-passwords.md"

RULES = Rules(
    "poolers",
    {
        "unreachable": Rule(ERROR, "{error}", "a console that answers", "{hint}"),
        "refused": Rule(ERROR, "{error}", f"a pooler that {APPLY} can update", "{hint}"),
        "file_missing": Rule(ERROR, "absent", "the file of aliases", APPLY),
        "file_edited": Rule(
            ERROR,
            "{actual}",
            "the file as shardctl wrote it",
            "run `shardctl pgbouncer diff` to see the changes; `shardctl pgbouncer apply --force` "
            "replaces the file",
        ),
        "file_differs": Rule(ERROR, "{actual}", "the aliases{of}", "{hint}"),
        "not_loaded": Rule(
            ERROR,
            "{there}",
            "what the file contains",
            f"run {APPLY} to reload the file; the pooler's log shows why it was not loaded",
        ),
        "paused": Rule(
            ERROR,
            "paused: clients wait",
            "clients are served",
            "if no operator or move {needs} it, run RESUME{alias} on the pooler's console",
        ),
        "disabled": Rule(
            ERROR,
            "disabled: clients are rejected",
            "clients are served",
            "if no operator or move {needs} it, run ENABLE{alias} on the pooler's console",
        ),
        "login_retry": Rule(
            WARNING,
            f"{serving.SHORT_S} s, the value during a move",
            "the server_login_retry of the pooler's configuration",
            "if no move is running, run RELOAD on the pooler's console",
        ),
        "wrong_server": Rule(
            ERROR,
            "connections to {there}",
            "connections to node {owner}, which owns the shards",
            'run RECONNECT "{first}" on the pooler\'s console',
        ),
        "login_refused": Rule(
            ERROR, "{actual}", "role {role} can log in to node {where}", "{hint}"
        ),
        "secrets_differ": Rule(
            WARNING,
            "nodes {nodes} have different SCRAM secrets",
            "the same secret on all nodes: PgBouncer keeps only one",
            f"set the role's SCRAM secret on all nodes to the pooler's ({PAGE})",
        ),
        "search_path": Rule(
            ERROR,
            "search_path is {path} on {count} of {all} connections of user {user}",
            "{first}",
            'run RECONNECT "{first}" on the pooler\'s console; then find the client that sends '
            "RESET ALL, DISCARD ALL or SET search_path (docs/poolers.md, drivers)",
        ),
        "search_path_unasked": Rule(
            NOTE,
            "the search_path of {count} of {all} idle connections could not be read",
            "the search_path of each idle connection",
            "run RECONNECT with the alias's name on the pooler's console: it replaces these "
            "connections",
        ),
        "search_path_unknown": Rule(
            NOTE,
            "cannot read the search_path as user {user}: {error}",
            "the search_path of each alias in use",
            "allow shardctl to log in to {address} as {user} (add a line to ~/.pgpass)",
        ),
        "login_untried": Rule(
            NOTE,
            "not tested: {why}",
            "role {object} can log in to {nodes}",
            f"add its password for {{address}} to your passfile ({PAGE})",
        ),
        "pool_mode": Rule(
            WARNING,
            "session{users}",
            "transaction",
            "set pool_mode = transaction: with session pooling a move waits for sessions to end, "
            "not only transactions",
        ),
        "no_prepared_statements": Rule(
            NOTE,
            "PgBouncer {version} has {what}",
            "protocol-level prepared statements",
            "disable prepared statements in clients (psycopg: prepare_threshold=None), or {remedy}",
        ),
    },
)


def shards_of(aliases: Iterable[str], entries: Sequence[Entry]) -> tuple[ShardId, ...]:
    """List the shards to which aliases lead."""
    named = set(aliases)
    return tuple(sorted({s for entry in entries if entry.alias in named for s in entry.shards}))


def brief(aliases: Sequence[str]) -> str:
    """Name the first few of aliases."""
    return listed(aliases, most=_SHOWN)


SCRAM = "SCRAM-SHA-256$"
"""How a secret begins that PgBouncer can hand on only where the node has the same one."""

_SECONDS = 5.0
_LINE = re.compile(r'"((?:[^"]|"")*)"\s+"((?:[^"]|"")*)"')


@dataclass(frozen=True, slots=True)
class Attempt:
    """A login as an application's role: `refused` is the node's word, `untried` why there is none.

    Both are None where the role got in.
    """

    role: str
    alias: str
    refused: str | None = None
    untried: str | None = None


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
        secrets=_secrets(host, pooler, found.config) if host is not None else None,
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
        node: [attempt(pooler, database, alias, r) for r in database.app_roles]
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
    return ask_pools(pooler, topology.database, ours, looked.pools)


def attempt(pooler: Pooler, database: Database, alias: str, role: str) -> Attempt:
    """Log in to an alias as a role and ask the node something, for a few seconds at most.

    The password is what libpq finds in a passfile; without one that is asked for, nothing is
    reported.
    """
    given = conninfo(pooler, database, purpose=None, dbname=alias, user=role)
    try:
        session = psycopg.connect(
            given, connect_timeout=int(_SECONDS), autocommit=True, prepare_threshold=None
        )
        with closing(session):
            error = _ask_node(session)
    except psycopg.Error as failed:
        if failed.pgconn is not None and failed.pgconn.needs_password:
            return Attempt(role, alias, untried="no passfile on this machine has its password")
        error = reason_of(failed)
        if isinstance(failed, psycopg.errors.ConnectionTimeout):
            return Attempt(role, alias, untried=error)
    if error is None:
        return Attempt(role, alias)
    if faults.is_of_pooler(error):
        return Attempt(role, alias, untried=f"the pooler rejects it: {error}")
    return Attempt(role, alias, refused=error)


def _secrets(host: Host, pooler: Pooler, config: Mapping[str, str]) -> dict[str, str | None] | None:
    """Read which users the pooler's auth_file has, with digests of their SCRAM secrets.

    A user with another kind of secret has None. The result is None if there is no file to read.
    """
    path = Path(config.get("auth_file") or "")
    if not path.is_absolute():
        return None
    try:
        text = files.read(host, path, user=pooler.os_user)
    except ShardctlError:  # another user's file: comparing is more than `verify` promises
        return None
    return None if text is None else digests(text)


def digests(text: str) -> dict[str, str | None]:
    r"""Take users and digests of their SCRAM secrets out of an auth_file.

    >>> digests('"app" "plain"\n; "old" "x"\n"a""b" "md5abc"')
    {'app': None, 'a"b': None}
    """
    found: dict[str, str | None] = {}
    for line in text.splitlines():
        if (match := _LINE.match(line.strip())) is not None:
            user, secret = (part.replace('""', '"') for part in match.groups())
            found[user] = digest(secret) if secret.startswith(SCRAM) else None
    return found


def digest(secret: str) -> str:
    """Give what two equal secrets have in common, and from which neither can be reported."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _ask_node(session: psycopg.Connection[object]) -> str | None:
    """Let the pooler get a connection of the node's; give the error, None for an answer."""
    wire = Wire(session.pgconn)
    wire.send(b"SELECT 1")
    if not wire.answered(_SECONDS):
        raise psycopg.errors.ConnectionTimeout(f"no response within {_SECONDS:g} s")
    result = wire.result()
    said = result.error_message.decode(errors="replace").strip() if result is not None else ""
    return said.splitlines()[0].partition("FATAL: ")[2].strip() or said if said else None


_MOST = 40
"""Connections of a pool that are asked; PgBouncer's own `default_pool_size` is 20.

PgBouncer gives the connection first that was given back last, so fewer would always be the same.
"""
_CLIENTS = 40
"""Clients of one user at a time: PgBouncer's own `max_client_conn` is 100."""
_WIDTH = 8
_HELD_S = 2.0
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


def ask_pools(
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
        asked = _ask_pool(pooler, database, first)
        found.append(asked)
        if asked.error is None and others:
            width = _CLIENTS // min(_MOST, max(map(_idle, others)))
            found += fanout.collect(
                others,
                lambda pool: _ask_pool(pooler, database, pool),
                width=min(_WIDTH, width),
            ).every()
    return found


def judge_asked(
    pooler: Pooler, asked: Sequence[Asked], entries: Sequence[Entry]
) -> Iterator[Finding]:
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


def _ask_pool(pooler: Pooler, database: Database, pool: Row) -> Asked:
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
    until = time.monotonic() + _HELD_S
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


def _idle(pool: Row) -> int:
    return sum(int(pool.get(state) or 0) for state in ("sv_idle", "sv_used"))


def _schema(path: str) -> str:
    """Take the quotes off a search_path of one schema; aliases have no quotes of their own.

    >>> _schema('"Shard-5"'), _schema("shard5"), _schema('"$user", public')
    ('Shard-5', 'shard5', '$user", public')
    """
    return path.strip('"')
