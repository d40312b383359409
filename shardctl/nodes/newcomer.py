"""A server that is to become a node: what it is like, and why shards could not go to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.checks import clock
from shardctl.checks.settings import SENDERS
from shardctl.errors import Refused, ShardctlError
from shardctl.meter import listed
from shardctl.moves.preflight import clocks, server, structure, subscriber, subscription
from shardctl.moves.preflight.decoding import OLDEST
from shardctl.moves.preflight.structure import Locale
from shardctl.moves.preflight.subject import STREAM
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision.observe import connect_for_maintenance
from shardctl.state import cluster, identity, observer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.clock import Offset
    from shardctl.moves.preflight.server import Server
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology

QUERIES = queries.load("shardctl.nodes", "newcomer.sql")

_WIDTH = 16
_PROBE = "shardctl_00000000"
"""The name of a subscription that is tried and rolled back."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that owns shards, as far as another has to fit it; or the new one."""

    server: Server
    locale: Locale
    clock: Offset


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What a server is like that is to become a node; `database` is whether it has the cluster's.

    `member` is whether an earlier run has made it one. `schemas` have the names of shards or of
    retired copies, `tables` other tables with rows. `logins` are nodes to which its server cannot
    log in for replication, and why; `back` those whose servers cannot log in to it.
    """

    as_peer: Peer
    taken: tuple[int, int, int]
    """Workers, those of logical replication, and origins in use."""
    database: bool
    member: bool
    schemas: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    """Rights that the login role lacks in the cluster's database."""
    logins: Mapping[NodeName, str] = field(default_factory=dict)
    back: Mapping[NodeName, str] = field(default_factory=dict)


def look(topology: Topology, node: Node, *, purpose: str) -> Newcomer:
    """Ask the server; changes nothing. Raises NodeUnavailable, format_too_new, node_unfit."""
    try:
        session = connect(node, topology.database, purpose=purpose, autocommit=True)
    except NodeUnavailable as error:
        if not error.answered:
            error.hint += "; if a move will clone onto it, give --for-clone"
            raise
        # It may only lack the database.
        session = connect_for_maintenance(topology, node, purpose)
    with session:
        return _read(topology, node, session)


def _read(topology: Topology, node: Node, session: Connection) -> Newcomer:
    database = session.info.dbname == topology.database.name
    row = cluster.read(session) if database and cluster.is_present(session) else None
    if row is not None:
        identity.check(row, topology, node.name)
    peer = read_peer(session)
    schemas = [topology.schema(shard) for shard in topology.owners()]
    found = session.execute(QUERIES["schemas"], {"schemas": schemas}) if database else ()
    tables = session.execute(QUERIES["tables"]) if database else ()
    lacking = () if peer.server.in_recovery else subscriber.read_lacking(session)
    tried = not (peer.server.in_recovery or lacking)
    return Newcomer(
        peer,
        queries.one(session, STREAM["subscriber"]),
        database,
        row is not None,
        schemas=tuple(name for (name,) in found),
        tables=tuple(name for (name,) in tables),
        settings=subscriber.read_settings(session),
        lacking=lacking if database else (),
        logins=_logins(topology, session, topology.owning()) if tried else {},
    )


def read_peer(session: Connection) -> Peer:
    """Ask a node."""
    locale = Locale(*queries.one(session, STREAM["locale"]))
    return Peer(server.read(session), locale, clock.of_server(session))


def peers(topology: Topology, *, purpose: str) -> Mapping[NodeName, Peer]:
    """Ask all nodes that own shards; raises NodeUnavailable, or Problems of several."""
    owning = topology.owning()
    asked = observer.ask(topology, lambda s, _: read_peer(s), purpose=purpose, nodes=owning)
    return asked.every()


def logins_to(topology: Topology, node: Node, *, purpose: str) -> Mapping[NodeName, str]:
    """Let the nodes that own shards log in to a new one that has the database; give what failed."""

    def one(peer: Node) -> str | None:
        with connect(peer, topology.database, purpose=purpose, autocommit=True) as session:
            if subscriber.read_lacking(session):
                return None  # it cannot be tried
            return subscription.attempt(session, node, topology.database, _PROBE).reason

    found = fanout.collect(topology.owning(), one, width=_WIDTH)
    found.every()
    return {peer.name: reason for peer, reason in found.values if reason is not None}


def _logins(topology: Topology, session: Connection, nodes: list[Node]) -> dict[NodeName, str]:
    found = {
        one.name: subscription.attempt(session, one, topology.database, _PROBE).reason
        for one in nodes
    }
    return {name: reason for name, reason in found.items() if reason is not None}


def refusals(node: NodeName, new: Newcomer) -> Iterator[ShardctlError]:
    """Find why a server cannot be an empty node; pure."""
    if new.schemas:
        yield Refused(
            "node_not_empty",
            f"node {node}: its database has schemas with the names of shards or of retired "
            f"copies: {listed(new.schemas)}",
            hint="check that the host is the right one; drop these schemas if you need nothing in "
            "them",
        )


def unfit(
    topology: Topology, node: NodeName, new: Newcomer, peers: Mapping[NodeName, Peer]
) -> Iterator[ShardctlError]:
    """Find why moves from or to this server would be refused; pure."""
    there = new.as_peer.server
    oldest = max([OLDEST, *(one.server.major for one in peers.values())])
    if there.major < oldest:
        yield TargetUnfit(
            node,
            "version",
            f"it has PostgreSQL {there.version}, which is older than another node of the fleet "
            "or than streamed moves need",
            hint=f"install PostgreSQL {oldest} or newer there",
        )
    if (level := there.settings["wal_level"]) != "logical":
        yield TargetUnfit(
            node,
            "wal_level",
            f"wal_level = {level}, so no shard could be streamed from it",
            hint="run ALTER SYSTEM SET wal_level = logical there and restart the server",
        )
    for name, wanted in (("max_wal_senders", SENDERS), ("max_replication_slots", 1)):
        if there.number(name) < wanted:
            yield TargetUnfit(
                node,
                "senders" if name == "max_wal_senders" else "slots",
                f"{name} = {there.number(name)}: a move needs {wanted}",
                hint=f"run ALTER SYSTEM SET {name} = {wanted + 8} there and restart the server",
            )
    yield from subscriber.full(node, there, new.taken)
    if new.lacking:
        yield subscriber.lacks(node, topology.database.user, new.lacking)
    for peer, one in peers.items():
        if different := list(structure.unlike(peer, one.locale, node, new.as_peer.locale)):
            yield from different
            break
    yield from _skewed(node, new.as_peer.clock, peers)
    yield from _unfit_database(node, new)
    yield from _unfit_logins(topology, node, new)


def _skewed(node: NodeName, own: Offset, peers: Mapping[NodeName, Peer]) -> Iterator[ShardctlError]:
    """Find a clock that differs from that of shardctl's machine, or of a peer."""
    for name, one in peers.items():
        theirs = {f"node {name}": one.clock}
        known = {error.message for error in clocks.differing(theirs)}
        found = clocks.differing({**theirs, f"node {node}": own})
        if new := [error for error in found if error.message not in known]:
            yield from new
            return


def _unfit_database(node: NodeName, new: Newcomer) -> Iterator[TargetUnfit]:
    if new.settings:
        yield TargetUnfit(
            node,
            "apply_settings",
            "these settings would stop the worker of a subscription, or change the values that it "
            f"reads: {', '.join(new.settings)}",
            hint="RESET them for the database, the role and the server",
        )
    if new.tables and not new.member:
        yield TargetUnfit(
            node,
            "database_not_empty",
            f"its database has tables with rows: {listed(new.tables)}",
            hint="check that the host is the right one; with --accept-unfit they stay as they are",
        )


def _unfit_logins(topology: Topology, node: NodeName, new: Newcomer) -> Iterator[TargetUnfit]:
    user = topology.database.replication_user
    for found, words in (
        (new.logins, "its server cannot log in to node {other} as {user}: {reason}"),
        (new.back, "the server of node {other} cannot log in to it as {user}: {reason}"),
    ):
        for other, reason in found.items():
            yield TargetUnfit(
                node,
                "replication_login",
                words.format(other=other, user=user, reason=reason),
                hint=f"on the server that is logged in to, allow {user} in pg_hba.conf; on the "
                "other, put the password into ~/.pgpass of the user who runs the server",
            )
