"""Whether applications can log in through a pooler to every node.

PgBouncer that keeps a SCRAM secret can log in only to nodes which have the very same one: the same
password that was set again has another salt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.poolers_words import PAGE, RULES, shards_of
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.checks.poolers_look import Looked
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import NodeName, Pooler, ShardId

Secrets = dict[str, str | None] | None
"""Digests of SCRAM secrets by role, None for one of another kind; None to those who may not."""

QUERIES = queries.load("shardctl.checks", "poolers.sql")


def look(place: Place) -> Secrets:
    """Read the digests of the applications' secrets, where this role may."""
    row = place.connection.execute(QUERIES["may_read_secrets"]).fetchone()
    if row is None or not row[0]:
        return None
    roles = {"roles": list(place.topology.database.app_roles)}
    return dict(place.connection.execute(QUERIES["secrets"], roles).fetchall())


def judge(
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
