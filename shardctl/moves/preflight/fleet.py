"""Preflight over all nodes: nobody else has the shards, and no other move is under way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.libpq import reason_of
from shardctl.moves.refusals import (
    MoveUnfinished,
    PreflightRefused,
    SourceUnfit,
    collected,
    listed,
)
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision.refusals import SchemaInTheWay
from shardctl.state import cluster, journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.errors import ShardctlError
    from shardctl.moves.plan import MovePlan
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName, Topology

QUERIES = queries.load("shardctl.moves.preflight", "preflight.sql")

WITH_MOVES = 2
"""The first format of schema shardctl that has a journal of moves."""
_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Peer:
    """One node, be it in the move or not.

    `format` is None where schema shardctl is not there, `moves` are empty before WITH_MOVES;
    `live` are those schemas of the moved shards that stand there.
    """

    format: int | None
    moves: tuple[Move, ...]
    live: tuple[str, ...]
    system: str
    """The server's system identifier, which clones share with their sources."""
    missing: tuple[str, ...] = ()
    """Tables of schema shardctl that were dropped."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes that are there; one without shards may be still to come."""

    peers: Mapping[NodeName, Peer]
    problems: tuple[ShardctlError, ...]


def look(topology: Topology, plan: MovePlan, *, purpose: str) -> Fleet:
    """Ask every node; why one could not be asked is in the result."""
    peers: dict[NodeName, Peer] = {}
    problems: list[ShardctlError] = []
    outcomes = fanout.run(
        topology.nodes.values(), lambda node: _ask(topology, plan, node, purpose), width=_WIDTH
    )
    for outcome in outcomes:
        with collected(problems):
            try:
                peers[outcome.item.name] = outcome.result()
            except NodeUnavailable:
                if outcome.item.shards:
                    raise
    return Fleet(peers, tuple(problems))


def judge(topology: Topology, plan: MovePlan, fleet: Fleet) -> Iterator[ShardctlError]:
    """Find unfinished moves, and shards that are not on the source or not there alone."""
    yield from fleet.problems
    others = unfinished(plan, fleet)
    clones = {move.target for move, _ in others}  # what is there is a copy, and not to be dropped
    for name, peer in fleet.peers.items():
        if topology.nodes[name].shards and (peer.format or 0) < WITH_MOVES:
            said = "is not there" if peer.format is None else f"has format {peer.format}"
            yield PreflightRefused(
                f"node {name}",
                "no_journal",
                f"schema shardctl {said}, so there is no journal of moves",
                hint="run `shardctl init`, which brings it up to date",
            )
        elif peer.missing:
            yield PreflightRefused(
                f"node {name}",
                "no_journal",
                f"tables of schema shardctl are missing: {listed(peer.missing)}",
                hint="run `shardctl init`, which makes them again",
            )
        if name == plan.source:
            missing = sorted(set(plan.schemas) - set(peer.live))
            if missing:
                yield SourceUnfit(
                    name,
                    "shards_missing",
                    f"schemas of shards that are to be moved are not there: {listed(missing)}",
                    hint="`shardctl verify` tells more; take the newest topology file",
                )
        elif (
            name != plan.target and name not in clones and peer.live
        ):  # what the target has is told with it
            yield SchemaInTheWay(
                name,
                f"shards that node {plan.source} owns live here too",
                sorted(peer.live),
                hint="prove that the copy holds nothing which its owner lacks, then drop it",
            )
    for move, known in others:
        yield MoveUnfinished(move.id, move.state.value, known)


def unproven(node: NodeName, fleet: Fleet) -> list[str]:
    """List the moves from a node whose retired copies there no comparison has confirmed.

    By all journals: that node's server need not run.
    """
    newest = (journal.newest(known.values()) for known in _copies(fleet).values())
    return [
        move.id
        for move in newest
        if move is not None and move.source == node and not move.state.terminal
    ]


def _copies(fleet: Fleet) -> dict[str, dict[NodeName, Move]]:
    copies: dict[str, dict[NodeName, Move]] = defaultdict(dict)
    for name, peer in fleet.peers.items():
        for move in peer.moves:
            copies[move.id][name] = move
    return copies


def unfinished(plan: MovePlan, fleet: Fleet) -> list[tuple[Move, list[NodeName]]]:
    """Give the other moves that have not ended, by their newest record, and who knows them."""
    found = []
    for known in _copies(fleet).values():
        newest = journal.newest(known.values())
        if newest is not None and not newest.state.closed and newest.id != plan.id:
            found.append((newest, list(known)))
    return found


def _ask(topology: Topology, plan: MovePlan, node: Node, purpose: str) -> Peer:
    try:
        with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
            row = cluster.read(session) if cluster.is_present(session) else None
            live = session.execute(QUERIES["live"], {"schemas": list(plan.schemas)})
            (system,) = session.execute(
                "SELECT system_identifier::text FROM pg_control_system()"
            ).fetchone() or ("",)
            missing = cluster.missing(session, row)
            has_moves = (
                row is not None
                and row.format >= WITH_MOVES
                and row.cluster == topology.cluster
                and not missing
            )
            return Peer(
                format=row.format if row else None,
                live=tuple(name for (name,) in live),
                system=system,
                moves=tuple(journal.read(session)) if has_moves else (),
                missing=missing,
            )
    except psycopg.Error as error:
        raise refused(node, topology.database.user, error) from error


def refused(node: Node, user: str, error: psycopg.Error) -> ShardctlError:
    """Say why a node did not answer a question."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return PreflightRefused(
            f"node {node.name}",
            "rights",
            f"{user} may not look: {reason_of(error)}",
            hint="log in as the role that made the fleet (`database.user`), or a superuser",
        )
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return PreflightRefused(
            f"node {node.name}",
            "locked",
            "somebody holds a table of the shards locked, for longer than a cutover may take",
            hint="find them in pg_locks and let them end, then try again",
        )
    return NodeUnavailable(node.name, f"{node.host}:{node.port}", reason_of(error))
