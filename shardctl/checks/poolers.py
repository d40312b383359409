"""Poolers that offer something else than the map says, or hold clients up."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardctl.checks.check import Check
from shardctl.checks.findings import Finding, Severity
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.pgbouncer import apply, faults, ini, render
from shardctl.pgbouncer.console import Console, PoolerUnavailable
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.checks.check import View
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.render import Entry, Header
    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology

NAME = "poolers"
PREPARED = (1, 21)
"""The first PgBouncer that keeps prepared statements in transaction pooling."""

_APPLY = "`shardctl pgbouncer apply`"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen of a pooler: `error` alone where its console cannot be used.

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


def look(topology: Topology, pooler: Pooler) -> Looked:
    """Ask a pooler's console and read its file; what goes wrong is in the result."""
    purpose = lock.purpose("verify")
    refused: ShardctlError | None = None
    text: str | None = None
    seen: apply.Seen | None = None
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
            return Looked(
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


def judge(view: View[None]) -> Iterator[Finding]:
    """Judge every pooler by itself."""
    version, topology = _truth(view)
    for name, looked in view.poolers.items():
        pooler = topology.poolers[name]
        if looked.error is not None:
            yield Finding(
                NAME,
                "unreachable",
                Severity.error,
                actual=_bare(looked.error, pooler),
                expected="a console that answers",
                hint=looked.error.hint,
                pooler=name,
                object=f"{pooler.host}:{pooler.port}",
            )
            continue
        entries = render.entries(topology, pooler)
        yield from _file(topology, pooler, looked, version)
        yield from _offered(pooler, looked, entries)
        yield from _left_over(topology, pooler, looked, entries)
        yield from _held(pooler, looked, entries)
        yield from _servers(topology, pooler, looked, entries)
        yield from _pooling(pooler, looked, entries)


def _truth(view: View[None]) -> tuple[int | None, Topology]:
    """Give the newest map's version, None where no node tells one, and who owns the shards.

    That the topology is older than the map is the finding of `map`; poolers follow the map.
    """
    states = [(b.state.map_version, b.map) for b in view.basics.values() if b.state]
    version = max((number for number, _ in states), default=0)
    topology = view.topology
    owners = topology.owners()
    newest, *others = [found for number, found in states if number == version] or [owners]
    whole = newest.keys() == owners.keys() and topology.nodes.keys() >= set(newest.values())
    if whole and all(one == newest for one in others):
        owned: dict[NodeName, list[ShardId]] = defaultdict(list)
        for shard in sorted(newest):
            owned[newest[shard]].append(shard)
        nodes = {n: replace(one, shards=tuple(owned[n])) for n, one in topology.nodes.items()}
        topology = replace(topology, nodes=nodes)
    return version or None, topology


def _file(
    topology: Topology, pooler: Pooler, looked: Looked, version: int | None
) -> Iterator[Finding]:
    """Compare the file with what rendering gives."""
    path = str(pooler.databases_file)
    if looked.refused is not None:
        yield Finding(
            NAME,
            "refused",
            Severity.error,
            actual=_bare(looked.refused, pooler),
            expected=f"a pooler that {_APPLY} could change",
            hint=looked.refused.hint,
            pooler=pooler.name,
        )
    if looked.text is None:
        if looked.refused is None:
            yield Finding(
                NAME, "file_missing", Severity.error,
                actual="absent", expected="the aliases", hint=_APPLY,
                pooler=pooler.name, object=path,
            )  # fmt: skip
        return
    header = render.header(looked.text)
    if looked.text.strip() and (header is None or header.edited):
        yield Finding(
            NAME,
            "file_edited",
            Severity.error,
            actual="changed by hand" if header else "not written by shardctl",
            expected="what shardctl wrote",
            hint="see `shardctl pgbouncer diff`; `shardctl pgbouncer apply --force` replaces it",
            pooler=pooler.name,
            object=path,
        )
        return
    # Where no node tells the map's version, the file is only compared with its own.
    wanted = version or (header.map_version if header else 0)
    if looked.text != render.databases(topology, pooler, wanted):
        actual, others = _origin(topology, header, wanted)
        yield Finding(
            NAME,
            "file_differs",
            Severity.error,
            actual=actual,
            expected=f"the aliases of map version {wanted}" if wanted else "the aliases",
            hint="is the topology the newest, and the pooler its own? "
            "`shardctl pgbouncer apply --force` replaces it"
            if others
            else f"see `shardctl pgbouncer diff`, then {_APPLY}",
            pooler=pooler.name,
            object=path,
        )


def _origin(topology: Topology, header: Header | None, wanted: int) -> tuple[str, bool]:
    """Say of what a file is that differs, and whether that is none of our business."""
    if header is None:
        return "empty", False
    if header.cluster != topology.cluster:
        return f"of cluster {header.cluster}", True
    if header.map_version != wanted:
        return f"of map version {header.map_version}", header.map_version > wanted
    return "other aliases", False


def _offered(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare what the pooler has loaded with what its own file says."""
    if isinstance(looked.refused, faults.OtherConfig | faults.NotIncluded):
        return  # it does not read the file
    taken = looked.refused.taken if isinstance(looked.refused, faults.AliasTaken) else ()
    # The fallback is never listed, only what it was used for; nobody but an operator writes it.
    elsewhere = {"*", *(alias for alias, _ in taken)}
    written = apply.databases_of(looked.text)
    wrong = []
    for alias in (name for name in written if name not in elsewhere):
        pairs = ini.pairs(written[alias])
        there = looked.offered.get(alias)
        right = (pairs.get("host"), pairs.get("port", "5432"), pairs.get("dbname", alias))
        if there is None or (there.host, str(there.port), there.dbname) != right:
            wrong.append(alias)
    if wrong:
        there = looked.offered.get(wrong[0])
        yield Finding(
            NAME,
            "not_loaded",
            Severity.error,
            actual=f"leads to {there.host}:{there.port}/{there.dbname}" if there else "not offered",
            expected="what the file says",
            hint=f"{_APPLY} lets it read the file again; its log says why it did not",
            pooler=pooler.name,
            shards=_shards(wrong, entries),
            object=_brief(wrong),
        )


def _left_over(
    topology: Topology, pooler: Pooler, looked: Looked, entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find aliases that are offered and stand in no file any more."""
    written = apply.databases_of(looked.text)
    found = (
        [
            alias
            for alias in apply.left_over(topology, looked.seen, entries, looked.offered)
            if alias not in written
        ]
        if looked.seen is not None
        else []
    )
    if found:
        yield Finding(
            NAME,
            "left_over",
            Severity.error,
            actual="offered, though no file has it",
            expected="what the file says",
            hint=f"{_APPLY} lets it read the file again",
            pooler=pooler.name,
            object=_brief(found),
        )


def _held(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Find aliases whose clients wait, or are turned away."""
    if looked.held:
        yield Finding(
            NAME,
            "paused",
            Severity.error,
            actual="clients wait",
            expected="clients are served",
            hint="on the pooler's console, if nobody is at work there: RESUME",
            pooler=pooler.name,
            object="the whole pooler",
        )
    ours = [looked.offered[e.alias] for e in entries if e.alias in looked.offered]
    for code, aliases, verb in (
        ("paused", [one.name for one in ours if one.paused], "RESUME"),
        ("disabled", [one.name for one in ours if one.disabled], "ENABLE"),
    ):
        if aliases:
            yield Finding(
                NAME,
                code,
                Severity.error,
                actual="clients wait" if code == "paused" else "clients are turned away",
                expected="clients are served",
                hint=f'on the pooler\'s console, if nobody is at work there: {verb} "{aliases[0]}"',
                pooler=pooler.name,
                shards=_shards(aliases, entries),
                object=_brief(aliases),
            )


def _servers(
    topology: Topology, pooler: Pooler, looked: Looked, entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find connections to a node that does not own what the alias leads to.

    Those to where the alias leads by what is loaded are told by `_file` and `_offered`.
    """

    def places(host: str | None, port: int) -> set[tuple[str, str]]:
        known = {_address(host or "/"), *looked.addresses.get(host or "", ())}
        return {(address, str(port)) for address in known}

    nodes = {p: n.name for n in topology.nodes.values() for p in places(n.pooler_host, n.port)}
    right = {entry.alias: entry for entry in entries if entry.alias in looked.offered}
    wrong: dict[tuple[str, NodeName], set[str]] = defaultdict(set)
    for server in looked.servers:
        alias, place = server["database"] or "", (server["addr"] or "", server["port"] or "")
        if alias not in right:
            continue
        entry, there = right[alias], looked.offered[alias]
        if place in places(entry.host, entry.port) | places(there.host, there.port):
            continue
        # Who is behind a name changes, but an address is what it is.
        if place in nodes or _is_address(entry.host):
            name = f"node {nodes[place]}" if place in nodes else ":".join(place)
            wrong[name, entry.node].add(alias)
    for (name, owner), found in wrong.items():
        aliases = sorted(found)
        yield Finding(
            NAME,
            "wrong_server",
            Severity.error,
            actual=f"connections to {name}",
            expected=f"connections to node {owner}, which owns the shards",
            hint=f'on the pooler\'s console: RECONNECT "{aliases[0]}"',
            pooler=pooler.name,
            shards=_shards(aliases, entries),
            object=_brief(aliases),
        )


def _pooling(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Say of a pooler what it pools, and what its clients must do without."""
    ours = {entry.alias for entry in entries}
    # A user may have a mode of its own, which only a pool in use shows.
    pools = [p for p in looked.pools if p["database"] in ours and p.get("pool_mode") == "session"]
    everywhere = looked.config.get("pool_mode") == "session"
    told = everywhere and isinstance(looked.refused, faults.PoolingUnfit)
    if (everywhere or pools) and not told:
        users = sorted({pool["user"] or "" for pool in pools})
        yield Finding(
            NAME,
            "pool_mode",
            Severity.warning,
            actual="session" if everywhere else f"session for {', '.join(users)}",
            expected="transaction",
            hint="set pool_mode = transaction: a move waits until sessions end, not transactions",
            pooler=pooler.name,
            object="pool_mode",
        )
    if everywhere:
        return
    number = tuple(map(int, looked.version.split(".")[:2]))
    if number < PREPARED or looked.config.get("max_prepared_statements") == "0":
        lacks = number < PREPARED
        yield Finding(
            NAME,
            "no_prepared_statements",
            Severity.note,
            actual=f"PgBouncer {looked.version} "
            + ("has none" if lacks else "has max_prepared_statements = 0"),
            expected="prepared statements of the protocol",
            hint="clients do without them (psycopg: prepare_threshold=None), or "
            + ("install 1.21 or newer" if lacks else "raise max_prepared_statements"),
            pooler=pooler.name,
            object="prepared statements",
        )


def _bare(error: ShardctlError, pooler: Pooler) -> str:
    """Take the pooler's name off an error that is told with it."""
    message = error.message.removeprefix(f"pooler {pooler.name}").lstrip()
    return message.removeprefix(f"({pooler.host}:{pooler.port})").removeprefix(":").strip()


def _address(host: str) -> str:
    """Write an address as PgBouncer does, and leave a name as it is.

    >>> _address("0:0::1"), _address("db1"), _address("/run/postgresql")
    ('::1', 'db1', 'unix')
    """
    if host.startswith("/"):
        return "unix"
    return str(ipaddress.ip_address(host)) if _is_address(host) else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _shards(aliases: Iterable[str], entries: Sequence[Entry]) -> tuple[ShardId, ...]:
    named = set(aliases)
    return tuple(sorted({s for entry in entries if entry.alias in named for s in entry.shards}))


def _brief(aliases: Sequence[str]) -> str:
    more = f" and {len(aliases) - _SHOWN} more" if len(aliases) > _SHOWN else ""
    return ", ".join(aliases[:_SHOWN]) + more


CHECK = Check(NAME, "every pooler offers what the map says, to all its clients", judge)
