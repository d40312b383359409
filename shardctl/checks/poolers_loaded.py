"""What a pooler has loaded and where it is connected, beside what it should be."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from typing import TYPE_CHECKING

from shardctl.checks.poolers_words import RULES, brief, shards_of
from shardctl.pgbouncer import apply, faults, ini

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.checks.check import Finding
    from shardctl.checks.poolers_look import Looked
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import NodeName, Pooler, Topology


def offered(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare what the pooler has loaded with its own file."""
    if isinstance(looked.refused, faults.OtherConfig | faults.NotIncluded):
        return  # it does not read the file
    taken = looked.refused.taken if isinstance(looked.refused, faults.AliasTaken) else ()
    # The fallback is never listed, only what it was used for; only an operator writes it.
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
        yield RULES.finding(
            "not_loaded",
            pooler=pooler.name,
            shards=shards_of(wrong, entries),
            object=brief(wrong),
            there=f"leads to {there.host}:{there.port}/{there.dbname}" if there else "not offered",
        )


def left_over(
    topology: Topology, pooler: Pooler, looked: Looked, entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find aliases that are offered and are in no file any more."""
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
        yield RULES.finding("left_over", pooler=pooler.name, object=brief(found))


def connected(
    topology: Topology, pooler: Pooler, looked: Looked, entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find connections to a node that does not own what the alias leads to.

    Those to where the alias leads by what is loaded are reported by `offered`, or of its file.
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
        yield RULES.finding(
            "wrong_server",
            pooler=pooler.name,
            shards=shards_of(aliases, entries),
            object=brief(aliases),
            there=name,
            owner=owner,
            first=aliases[0],
        )


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
