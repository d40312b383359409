"""What is found of poolers: the findings' texts, what they have loaded, and their logins."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, NOTE, WARNING, Rule, Rules
from shardctl.pgbouncer import apply, faults, ini, serving
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.checks.poolers_look import Asked, Looked
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology


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
        "left_over": Rule(
            ERROR,
            "offered, but no file contains it",
            "only aliases of the file",
            f"run {APPLY} to reload the file",
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
    more = f" and {len(aliases) - _SHOWN} more" if len(aliases) > _SHOWN else ""
    return ", ".join(aliases[:_SHOWN]) + more


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


Secrets = dict[str, str | None] | None
"""Digests of SCRAM secrets by role, None for one of another kind; None to those who may not."""

QUERIES = queries.load("shardctl.checks", "poolers.sql")


def look_at_secrets(place: Place) -> Secrets:
    """Read the digests of the applications' secrets, where this role may."""
    row = place.connection.execute(QUERIES["may_read_secrets"]).fetchone()
    if row is None or not row[0]:
        return None
    roles = {"roles": list(place.topology.database.app_roles)}
    return dict(place.connection.execute(QUERIES["secrets"], roles).fetchall())


def judge_logins(
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


def _schema(path: str) -> str:
    """Take the quotes off a search_path of one schema; aliases have no quotes of their own.

    >>> _schema('"Shard-5"'), _schema("shard5"), _schema('"$user", public')
    ('Shard-5', 'shard5', '$user", public')
    """
    return path.strip('"')
