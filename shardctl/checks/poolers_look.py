"""What `verify` sees of a pooler: its console's answers and its file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardctl.checks import poolers_asked
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.pgbouncer import apply, logins, render
from shardctl.pgbouncer.console import Console, PoolerUnavailable
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.hosts.host import Host
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.logins import Attempt
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import NodeName, Pooler, Topology


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
) -> list[poolers_asked.Asked]:
    """Ask through the aliases of shards, unless their clients wait."""
    names = {entry.alias for entry in entries if entry.connect_query}
    ours = {name: alias for name, alias in looked.offered.items() if name in names}
    if looked.held or not ours:
        return []
    return poolers_asked.ask(pooler, topology.database, ours, looked.pools)
