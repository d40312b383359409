"""Nodes that cannot be used: unreachable, standby, of differing versions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, NOTE, WARNING, Check, Rule, Rules
from shardctl.hosts import ports
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.check import Finding, Place, View
    from shardctl.postgres.connection import NodeUnavailable
    from shardctl.topology.model import Node

RULES = Rules(
    "connection",
    {
        "unreachable": Rule(ERROR, "{reason}", "a successful login", "{hint}"),
        "not_there": Rule(
            NOTE,
            "{reason}",
            "no server is required while the node owns no shards",
            "node {node} owns no shards; it is a free target for move-shards",
        ),
        "standby": Rule(
            ERROR,
            "in recovery",
            "a primary",
            "set the node's host and port to those of the primary",
        ),
        "version_differs": Rule(
            WARNING,
            "PostgreSQL {major}",
            "PostgreSQL {usual}, the version of most nodes",
            "move shards to the newer version (docs/howto/upgrade-postgresql.md)",
        ),
        "public_open": Rule(
            ERROR,
            "{what}",
            "only functions of trusted roles, which {user} can run",
            "as the owner of the database: {remedy}",
        ),
        "public_connects": Rule(
            NOTE,
            "every role of the server may log in to it",
            "a database for the roles that have the right to it",
            "as its owner: REVOKE CONNECT ON DATABASE {database} FROM PUBLIC; first GRANT CONNECT "
            "to roles that need it, such as those of monitoring",
        ),
        "server_unproven": Rule(
            WARNING,
            "sslmode {mode}: another machine can answer in its place",
            "sslmode verify-full on a connection to another machine",
            "set sslmode: verify-full and sslrootcert in database.options",
        ),
    },
)


def unreachable(node: Node, error: NodeUnavailable) -> Finding:
    """Report that a node could not be logged in to; without shards it may be still to come."""
    return RULES.finding(
        "unreachable" if node.shards else "not_there",
        node=node.name,
        object=f"{node.host}:{node.port}",
        reason=error.reason,
        hint=error.hint,
    )


def look(place: Place) -> None:
    """Find intruders, that every role may log in, and a server elsewhere that proves nothing."""
    sslmode = place.connection.info.get_parameters().get("sslmode") or "prefer"
    RULES.ask(place, "public")
    for one in catalog.read_intruders(place.connection):
        words = {"what": one.what, "user": place.topology.database.user, "remedy": one.remedy}
        RULES.found(place, "public_open", object="public", **words)
    if sslmode != "verify-full" and not ports.is_here(place.node.host):
        RULES.found(place, "server_unproven", mode=sslmode)


def judge(view: View[None]) -> Iterator[Finding]:
    """Find standbys and versions that differ."""
    majors = Counter(one.major for one in view.basics.values())
    usual = max(majors, key=lambda major: (majors[major], -major), default=0)
    for name, basics in view.basics.items():
        if basics.in_recovery and not view.clone(name):
            yield RULES.finding("standby", node=name)
        if basics.major != usual:
            yield RULES.finding("version_differs", node=name, major=basics.major, usual=usual)


CHECK = Check(
    RULES,
    "shardctl can log in to every node, and each is a primary of the same version",
    judge,
    look,
)
