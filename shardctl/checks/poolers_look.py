"""What `verify` sees of a pooler: its console's answers, its file, applications' logins."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from shardctl.checks import poolers_asked
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.libpq import reason_of
from shardctl.pgbouncer import apply, faults, render
from shardctl.pgbouncer.console import Console, PoolerUnavailable, conninfo
from shardctl.state import lock
from shardctl.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.hosts.host import Host
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Database, NodeName, Pooler, Topology


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
    asked: Sequence[poolers_asked.Asked] = ()


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
) -> list[poolers_asked.Asked]:
    """Ask through the aliases of shards, unless their clients wait."""
    names = {entry.alias for entry in entries if entry.connect_query}
    ours = {name: alias for name, alias in looked.offered.items() if name in names}
    if looked.held or not ours:
        return []
    return poolers_asked.ask(pooler, topology.database, ours, looked.pools)


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
