"""Poolers that offer something else than the map has, or hold clients up."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardctl.checks import poolers_ask
from shardctl.checks.check import ERROR, QUERIES, WARNING, Check, Rule, Rules
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.meter import listed
from shardctl.pgbouncer import apply, render, serving
from shardctl.pgbouncer.console import Console, PoolerUnavailable
from shardctl.postgres import queries
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.checks.poolers_ask import Asked
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology


Secrets = dict[str, str | None]
"""Digests of SCRAM secrets by role, None for one of another kind; empty where they are hidden.

PgBouncer that keeps a SCRAM secret can log in only to nodes which have the very same one: the same
password that was set again has another salt.
"""

_SHOWN = 3
_APPLY = "run `shardctl pgbouncer apply`"
_HELD = "if no operator or move needs it, run {command} on the pooler's console"

RULES = Rules(
    "poolers",
    {
        **poolers_ask.RULES.of,
        "unreachable": Rule(ERROR, "{error}", "a console that answers", "{hint}"),
        "refused": Rule(
            ERROR, "{error}", "a pooler that `shardctl pgbouncer apply` can update", "{hint}"
        ),
        "file_differs": Rule(
            ERROR,
            "{actual}",
            "the file as shardctl writes it{of}",
            "run `shardctl pgbouncer diff` to see the changes, then `shardctl pgbouncer apply`; "
            "with --force it replaces a file that is not its own or is newer",
        ),
        "not_loaded": Rule(
            ERROR,
            "{there}",
            "what the file contains",
            f"{_APPLY} to reload the file; the pooler's log shows why it was not loaded",
        ),
        "paused": Rule(ERROR, "paused: clients wait", "clients are served", _HELD),
        "disabled": Rule(ERROR, "disabled: clients are rejected", "clients are served", _HELD),
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
        "secrets_differ": Rule(
            WARNING,
            "nodes {nodes} have different SCRAM secrets",
            "the same secret on all nodes: PgBouncer keeps only one",
            "set the role's SCRAM secret on all nodes to the pooler's "
            "(docs/howto/change-passwords.md)",
        ),
    },
)


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
    held: bool = False
    """Whether the whole pooler is paused."""
    offered: Mapping[str, Alias] = field(default_factory=dict)
    servers: Sequence[Row] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the pooler knows of the names of hosts."""
    asked: Sequence[Asked] = ()


def look_at(topology: Topology, pooler: Pooler) -> Looked:
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
            pools = console.pools()
            found = Looked(
                error=None,
                refused=refused,
                text=text,
                seen=seen,
                held=console.held(),
                offered=console.databases(),
                servers=console.servers(),
                config=console.config(),
                addresses=console.resolved(),
            )
    except ShardctlError as error:
        return Looked(error)
    entries = render.entries(topology, pooler)
    offered = {} if found.held else found.offered
    asked = poolers_ask.ask(topology.database, pooler, offered, pools, entries)
    return replace(found, asked=asked)


def look(place: Place) -> Secrets:
    """Read the digests of the applications' secrets, where this role may."""
    if not queries.one(place.connection, QUERIES["may_read_secrets"])[0]:
        return {}
    roles = {"roles": list(place.topology.database.app_roles)}
    return dict(place.connection.execute(QUERIES["secrets"], roles).fetchall())


def judge(view: View[Secrets]) -> Iterator[Finding]:
    """Judge every pooler by itself, and whether nodes have the secrets that they all keep."""
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
        if serving.was_left_short(looked.config):
            yield RULES.finding("login_retry", pooler=name, object="server_login_retry")
        yield from _connected(topology, pooler, looked, entries)
        yield from poolers_ask.judge(view, pooler, looked.asked, entries)
    if view.poolers:
        yield from _secrets(view)


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
    if looked.refused is not None:
        error, hint = _bare(looked.refused, pooler), looked.refused.hint
        yield RULES.finding("refused", pooler=pooler.name, error=error, hint=hint)
    header = render.header(looked.text or "")
    # Where no node has the map's version, the file is only compared with its own.
    wanted = version or (header.map_version if header else 0)
    if looked.text is None:
        actual = "absent"
    elif looked.text == render.databases(topology, pooler, wanted):
        return
    elif header is None:
        actual = "not written by shardctl" if looked.text.strip() else "empty"
    elif header.edited:
        actual = "changed by hand"
    else:
        actual = f"other aliases, of cluster {header.cluster}, map version {header.map_version}"
    if looked.text is not None or looked.refused is None:
        yield RULES.finding(
            "file_differs",
            pooler=pooler.name,
            object=str(pooler.databases_file),
            actual=actual,
            of=f" for map version {wanted}" if wanted else "",
        )


def _offered(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare what the pooler has loaded with its own file."""
    if looked.refused is not None and looked.refused.code in ("other_config", "not_included"):
        return  # it does not read the file
    written = render.databases_of(looked.text or "")
    wrong: dict[str, str] = {}
    # The fallback is never listed, only what it was used for; only an operator writes it.
    for alias in (name for name in written if name != "*"):
        pairs = render.pairs(written[alias])
        there = looked.offered.get(alias)
        right = (pairs.get("host"), pairs.get("port", "5432"), pairs.get("dbname", alias))
        if there is None:
            wrong[alias] = "not offered"
        elif (there.host, str(there.port), there.dbname) != right:
            wrong[alias] = f"leads to {there.host}:{there.port}/{there.dbname}"
    if wrong:
        yield _of_aliases(
            "not_loaded", pooler, list(wrong), entries, there=next(iter(wrong.values()))
        )


def _held(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Find aliases whose clients wait, or are turned away."""
    if looked.held:
        yield RULES.finding(
            "paused", pooler=pooler.name, object="the whole pooler", command="RESUME"
        )
    ours = [looked.offered[e.alias] for e in entries if e.alias in looked.offered]
    for code, command, aliases in (
        ("paused", "RESUME", [one.name for one in ours if one.paused]),
        ("disabled", "ENABLE", [one.name for one in ours if one.disabled]),
    ):
        if aliases:
            shown = f'{command} "{aliases[0]}"'
            yield _of_aliases(code, pooler, aliases, entries, command=shown)


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
        words = {"there": name, "owner": owner, "first": aliases[0]}
        yield _of_aliases("wrong_server", pooler, aliases, entries, **words)


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


def _secrets(view: View[Secrets]) -> Iterator[Finding]:
    """Find roles whose SCRAM secrets nodes do not share."""
    for role in view.topology.database.app_roles:
        kinds: dict[str, NodeName] = {}
        for node, secrets in view.seen.items():
            if (secret := secrets.get(role)) is not None:
                kinds.setdefault(secret, node)
        if len(kinds) > 1:
            yield RULES.finding("secrets_differ", object=role, nodes=", ".join(kinds.values()))


def _of_aliases(
    code: str, pooler: Pooler, aliases: Sequence[str], entries: Sequence[Entry], **words: str
) -> Finding:
    """Report something of aliases, with the shards to which they lead."""
    shards = sorted({s for entry in entries if entry.alias in aliases for s in entry.shards})
    shown = listed(aliases, most=_SHOWN)
    return RULES.finding(
        code, None, node=None, pooler=pooler.name, shards=shards, object=shown, **words
    )


def _bare(error: ShardctlError, pooler: Pooler) -> str:
    """Take the pooler's name off an error that is reported with it."""
    message = error.message.removeprefix(f"pooler {pooler.name}").lstrip()
    return message.removeprefix(f"({pooler.host}:{pooler.port})").removeprefix(":").strip()


CHECK = Check(
    RULES,
    "every pooler offers the aliases of the map and serves all its clients",
    judge,
    look,
)
