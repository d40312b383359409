"""Nodes that cannot be used: unreachable, standby, too old, of differing versions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks.check import Check
from shardctl.checks.findings import Finding, Severity
from shardctl.hosts import ports
from shardctl.ids.generator import quote_identifier
from shardctl.postgres import OLDEST_MAJOR, queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.check import Place, View
    from shardctl.postgres.connection import NodeUnavailable
    from shardctl.topology.model import Node

NAME = "connection"
QUERIES = queries.load("shardctl.checks", "connection.sql")


def unreachable(node: Node, error: NodeUnavailable) -> Finding:
    """Report that a node could not be logged in to; without shards it may be still to come."""
    return Finding(
        NAME,
        "unreachable" if node.shards else "not_there",
        Severity.error if node.shards else Severity.note,
        actual=error.reason,
        expected="a successful login"
        if node.shards
        else "no server is required while the node owns no shards",
        hint=error.hint
        if node.shards
        else f"node {node.name} owns no shards; it is a free target for move-shards",
        node=node.name,
        object=f"{node.host}:{node.port}",
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
    """Find standbys, old servers, versions that differ, servers that prove nothing, intruders."""
    for name, seen in view.seen.items():
        if seen.public:
            database = view.topology.database.name
            yield Finding(
                NAME,
                "public_connects",
                Severity.note,
                actual="every role of the server may log in to it",
                expected="a database for the roles that have the right to it",
                hint="as its owner: "
                f"REVOKE CONNECT ON DATABASE {quote_identifier(database)} FROM PUBLIC; first "
                "GRANT CONNECT to roles that need it, such as those of monitoring",
                node=name,
                object=database,
            )
        if seen.sslmode not in (None, "verify-full"):
            yield Finding(
                NAME,
                "server_unproven",
                Severity.warning,
                actual=f"sslmode {seen.sslmode}: another machine can answer in its place",
                expected="sslmode verify-full on a connection to another machine",
                hint="set sslmode: verify-full and sslrootcert in database.options",
                node=name,
            )
    for name, basics in view.basics.items():
        for one in basics.intruders:
            yield Finding(
                NAME,
                "public_open",
                Severity.error,
                actual=one.what,
                expected=f"only functions of trusted roles, which {view.topology.database.user} "
                "can run",
                hint=f"as the owner of the database: {one.remedy}",
                node=name,
                object="public",
            )
    majors = Counter(b.version_number // 10_000 for b in view.basics.values())
    usual = max(majors, key=lambda major: (majors[major], -major), default=0)
    for name, basics in view.basics.items():
        major = basics.version_number // 10_000
        if basics.in_recovery and not view.clone(name):
            yield Finding(
                NAME,
                "standby",
                Severity.error,
                actual="in recovery",
                expected="a primary",
                hint="set the node's host and port to those of the primary",
                node=name,
            )
        if major < OLDEST_MAJOR:
            yield Finding(
                NAME,
                "too_old",
                Severity.error,
                actual=f"PostgreSQL {basics.version}",
                expected=f"PostgreSQL {OLDEST_MAJOR} or newer",
                hint="upgrade the server",
                node=name,
            )
        elif major != usual:
            yield Finding(
                NAME,
                "version_differs",
                Severity.warning,
                actual=f"PostgreSQL {basics.version}",
                expected=f"PostgreSQL {usual}, the version of most nodes",
                hint=f"move its shards to nodes with PostgreSQL {usual}, by streamed moves"
                if major < usual
                else f"move the shards of all other nodes to nodes with PostgreSQL {major}, by "
                "streamed moves",
                node=name,
            )


CHECK = Check(
    NAME,
    "shardctl can log in to every node, and each is a primary of a supported version",
    judge,
    look,
)
