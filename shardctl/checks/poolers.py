"""Poolers that offer something else than the map has, or hold clients up."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.checks import poolers_look
from shardctl.checks.check import QUERIES, Check
from shardctl.checks.poolers_look import APPLY, PAGE, RULES, brief, shards_of
from shardctl.pgbouncer import apply, faults, render, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.checks.poolers_look import Looked
    from shardctl.errors import ShardctlError
    from shardctl.pgbouncer.render import Entry, Header
    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology


Secrets = dict[str, str | None] | None
"""Digests of SCRAM secrets by role, None for one of another kind; None to those who may not.

PgBouncer that keeps a SCRAM secret can log in only to nodes which have the very same one: the same
password that was set again has another salt.
"""

PREPARED = (1, 21)
"""The first PgBouncer that keeps prepared statements in transaction pooling."""


def judge(view: View[Secrets]) -> Iterator[Finding]:
    """Judge every pooler by itself."""
    version, topology = _truth(view)
    for name, looked in view.poolers.items():
        pooler = topology.poolers[name]
        if looked.error is not None:
            yield RULES.finding(
                "unreachable",
                pooler=name,
                object=f"{pooler.host}:{pooler.port}",
                error=_bare(looked.error, pooler),
                hint=looked.error.hint,
            )
            continue
        entries = render.entries(topology, pooler)
        yield from _file(topology, pooler, looked, version)
        yield from _offered(pooler, looked, entries)
        yield from _held(pooler, looked, entries)
        yield from _retry(pooler, looked)
        yield from _connected(topology, pooler, looked, entries)
        yield from poolers_look.judge_asked(pooler, looked.asked, entries)
        yield from _pooling(pooler, looked, entries)
        yield from _logins(view, pooler, looked, entries)


def _truth(view: View[Secrets]) -> tuple[int | None, Topology]:
    """Give the newest map's version, None where no node has one, and the owners of the shards.

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
        error, hint = _bare(looked.refused, pooler), looked.refused.hint
        yield RULES.finding("refused", pooler=pooler.name, error=error, hint=hint)
    if looked.text is None:
        if looked.refused is None:
            yield RULES.finding("file_missing", pooler=pooler.name, object=path)
        return
    header = render.header(looked.text)
    if looked.text.strip() and (header is None or header.edited):
        actual = "changed by hand" if header else "not written by shardctl"
        yield RULES.finding("file_edited", pooler=pooler.name, object=path, actual=actual)
        return
    # Where no node has the map's version, the file is only compared with its own.
    wanted = version or (header.map_version if header else 0)
    if looked.text != render.databases(topology, pooler, wanted):
        actual, others = _origin(topology, header, wanted)
        yield RULES.finding(
            "file_differs",
            pooler=pooler.name,
            object=path,
            actual=actual,
            of=f" of map version {wanted}" if wanted else "",
            hint=(
                "check that the topology is the newest and that the pooler belongs to it; "
                "then run `shardctl pgbouncer apply --force` to replace the file"
            )
            if others
            else f"run `shardctl pgbouncer diff` to see the changes, then {APPLY}",
        )


def _origin(topology: Topology, header: Header | None, wanted: int) -> tuple[str, bool]:
    """Describe what a differing file is of, and whether that is another cluster or map."""
    if header is None:
        return "empty", False
    if header.cluster != topology.cluster:
        return f"of cluster {header.cluster}", True
    if header.map_version != wanted:
        return f"of map version {header.map_version}", header.map_version > wanted
    return "other aliases", False


def _held(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Find aliases whose clients wait, or are turned away."""
    if looked.held:
        yield RULES.finding(
            "paused",
            pooler=pooler.name,
            object="the whole pooler",
            needs="has paused",
            alias="",
        )
    ours = [looked.offered[e.alias] for e in entries if e.alias in looked.offered]
    for code, aliases in (
        ("paused", [one.name for one in ours if one.paused]),
        ("disabled", [one.name for one in ours if one.disabled]),
    ):
        if aliases:
            yield RULES.finding(
                code,
                pooler=pooler.name,
                shards=shards_of(aliases, entries),
                object=brief(aliases),
                needs="needs",
                alias=f' "{aliases[0]}"',
            )


def _retry(pooler: Pooler, looked: Looked) -> Iterator[Finding]:
    """Find what a command left that was killed while it resumed clients."""
    if serving.was_left_short(looked.config):
        yield RULES.finding("login_retry", pooler=pooler.name, object="server_login_retry")


def _pooling(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Report what a pooler pools, and what its clients must do without."""
    ours = {entry.alias for entry in entries}
    # A user may have a mode of its own, which only a pool in use shows.
    pools = [p for p in looked.pools if p["database"] in ours and p.get("pool_mode") == "session"]
    everywhere = looked.config.get("pool_mode") == "session"
    reported = everywhere and isinstance(looked.refused, faults.PoolingUnfit)
    if (everywhere or pools) and not reported:
        users = sorted({pool["user"] or "" for pool in pools})
        of = "" if everywhere else f" for {', '.join(users)}"
        yield RULES.finding("pool_mode", pooler=pooler.name, object="pool_mode", users=of)
    if everywhere:
        return
    number = tuple(map(int, looked.version.split(".")[:2]))
    if number < PREPARED or looked.config.get("max_prepared_statements") == "0":
        lacks = number < PREPARED
        yield RULES.finding(
            "no_prepared_statements",
            pooler=pooler.name,
            object="prepared statements",
            version=looked.version,
            what="none" if lacks else "max_prepared_statements = 0",
            remedy="install 1.21 or newer" if lacks else "raise max_prepared_statements",
        )


def _bare(error: ShardctlError, pooler: Pooler) -> str:
    """Take the pooler's name off an error that is reported with it."""
    message = error.message.removeprefix(f"pooler {pooler.name}").lstrip()
    return message.removeprefix(f"({pooler.host}:{pooler.port})").removeprefix(":").strip()


def _offered(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare what the pooler has loaded with its own file."""
    if isinstance(looked.refused, faults.OtherConfig | faults.NotIncluded):
        return  # it does not read the file
    written = apply.databases_of(looked.text)
    wrong = []
    # The fallback is never listed, only what it was used for; only an operator writes it.
    for alias in (name for name in written if name != "*"):
        pairs = render.pairs(written[alias])
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


def _connected(
    topology: Topology, pooler: Pooler, looked: Looked, entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find connections to a node that does not own what the alias leads to.

    Those to where the alias leads by what is loaded are reported by `_offered`, or of its file.
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


def look(place: Place) -> Secrets:
    """Read the digests of the applications' secrets, where this role may."""
    row = place.connection.execute(QUERIES["may_read_secrets"]).fetchone()
    if row is None or not row[0]:
        return None
    roles = {"roles": list(place.topology.database.app_roles)}
    return dict(place.connection.execute(QUERIES["secrets"], roles).fetchall())


def _logins(
    view: View[Secrets], pooler: Pooler, looked: Looked, entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find roles that a node rejects, and roles whose logins could not be tested."""
    for role in view.topology.database.app_roles:
        differing = _differing(view, looked, role)
        refused, untried = _attempts(view, looked, role)
        for node in looked.logins:
            if node not in differing and node not in refused:
                continue
            yield RULES.finding(
                "login_refused",
                pooler=pooler.name,
                shards=_shards(entries, node),
                object=f"{role} on node {node}",
                actual=refused.get(node) or "the SCRAM secret differs from the pooler's auth_file",
                role=role,
                where=node,
                hint=f"set the role's SCRAM secret on the node to the pooler's ({PAGE})"
                if node in differing or "password" in refused[node]
                else (
                    f"allow role {role} to log in from the pooler: check pg_hba.conf and "
                    f"the role on node {node}"
                ),
            )
        if looked.secrets is None and len(nodes := _kinds(view, looked, role)) > 1:
            yield RULES.finding(
                "secrets_differ", pooler=pooler.name, object=role, nodes=", ".join(nodes)
            )
        kept = (looked.secrets or {}).get(role)
        compared = [node for node in untried if kept and role in (view.seen.get(node) or {})]
        if len(compared) < len(untried):
            yield RULES.finding(
                "login_untried",
                pooler=pooler.name,
                object=role,
                why=next(iter(untried.values())),
                nodes=", ".join(untried),
                address=f"{pooler.host}:{pooler.port}",
            )


def _differing(view: View[Secrets], looked: Looked, role: str) -> set[NodeName]:
    """Name the nodes whose SCRAM secret is not the pooler's, as far as both can be read."""
    kept = (looked.secrets or {}).get(role)
    if kept is None:
        return set()
    secrets = {node: (view.seen.get(node) or {}) for node in looked.logins}
    return {node for node, held in secrets.items() if role in held and held[role] != kept}


def _kinds(view: View[Secrets], looked: Looked, role: str) -> list[NodeName]:
    """Name a node for each SCRAM secret that a role has."""
    kinds: dict[str, NodeName] = {}
    for node in looked.logins:
        if (held := (view.seen.get(node) or {}).get(role)) is not None:
            kinds.setdefault(held, node)
    return list(kinds.values())


def _attempts(
    view: View[Secrets], looked: Looked, role: str
) -> tuple[dict[NodeName, str], dict[NodeName, str]]:
    """Return by node why a login was refused, or not tried; `connection` reports absent nodes."""
    refused, untried = {}, {}
    for node, attempts in looked.logins.items():
        for one in attempts:
            if one.role != role or node not in view.basics:
                continue
            if one.refused is not None:
                refused[node] = one.refused
            elif one.untried is not None:
                untried[node] = one.untried
    return refused, untried


def _shards(entries: Sequence[Entry], node: NodeName) -> tuple[ShardId, ...]:
    return shards_of([entry.alias for entry in entries if entry.node == node], entries)


CHECK = Check(
    RULES,
    "every pooler offers the aliases of the map and serves all its clients",
    judge,
    look,
)
