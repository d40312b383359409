"""Nodes that cannot be used: unreachable, standby, of differing versions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, NOTE, QUERIES, WARNING, Check, Rule, Rules
from shardctl.hosts import ports
from shardctl.ids.generator import quote_identifier
from shardctl.postgres import queries

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
            "PostgreSQL {version}",
            "PostgreSQL {usual}, the version of most nodes",
            "move shards to the newer version, by streamed moves; until then `structure` compares "
            "only shards of one version",
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


@dataclass(frozen=True, slots=True)
class Seen:
    """A session's sslmode, None where no other machine is at its end, and who may log in."""

    sslmode: str | None
    public: bool
    """Whether every role may."""


def look(place: Place) -> Seen:
    """Ask the session, and one question."""
    session = place.connection
    sslmode = session.info.get_parameters().get("sslmode") or "prefer"
    (public,) = queries.one(session, QUERIES["public"])
    return Seen(None if ports.is_here(place.node.host) else sslmode, public)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find standbys, versions that differ, servers that prove nothing, intruders."""
    for name, seen in view.seen.items():
        if seen.public:
            database = view.topology.database.name
            quoted = quote_identifier(database)
            yield RULES.finding("public_connects", node=name, object=database, database=quoted)
        if seen.sslmode not in (None, "verify-full"):
            yield RULES.finding("server_unproven", node=name, mode=seen.sslmode)
    for name, basics in view.basics.items():
        for one in basics.intruders:
            yield RULES.finding(
                "public_open",
                node=name,
                object="public",
                what=one.what,
                user=view.topology.database.user,
                remedy=one.remedy,
            )
    majors = Counter(b.version_number // 10_000 for b in view.basics.values())
    usual = max(majors, key=lambda major: (majors[major], -major), default=0)
    for name, basics in view.basics.items():
        major = basics.version_number // 10_000
        if basics.in_recovery and not view.clone(name):
            yield RULES.finding("standby", node=name)
        if major != usual:
            yield RULES.finding(
                "version_differs",
                node=name,
                version=basics.version,
                usual=usual,
            )


CHECK = Check(
    RULES,
    "shardctl can log in to every node, and each is a primary of the same version",
    judge,
    look,
)
