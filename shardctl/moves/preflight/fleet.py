"""All nodes: none but the source has the shards, and no other move is running."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.moves.preflight.subject import QUERIES, refused
from shardctl.moves.refusals import (
    PreflightRefused,
    SourceUnfit,
    collected,
    listed,
)
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import maps
from shardctl.provision.refusals import schema_in_the_way
from shardctl.state import cluster, journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node, NodeName

WITH_MOVES = 2
"""The first format of schema shardctl that has a journal of moves."""
_WIDTH = 16
_SYSTEM = "SELECT system_identifier::text FROM pg_control_system()"


@dataclass(frozen=True, slots=True)
class Peer:
    """One node, in the move or not.

    `format` is None where schema shardctl is missing, `moves` are empty before WITH_MOVES;
    `live` are the schemas of moved shards that the node has.
    """

    format: int | None
    moves: tuple[Move, ...]
    live: tuple[str, ...]
    system: str
    """The server's system identifier, which a clone shares with its source."""
    missing: tuple[str, ...] = ()
    """Tables of schema shardctl that were dropped."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes that answer; one without shards may be missing."""

    peers: Mapping[NodeName, Peer]
    problems: tuple[ShardctlError, ...]


def look_at_map(context: Context) -> None:
    """Check that the map is still the plan's; raises what `maps.require` raises."""
    maps.require(context.topology, context.plan.map_version, purpose=context.purpose)


def look(context: Context) -> Fleet:
    """Ask every node; the result has the errors of those that could not be asked."""
    peers: dict[NodeName, Peer] = {}
    problems: list[ShardctlError] = []
    outcomes = fanout.run(
        context.topology.nodes.values(), lambda node: _ask(context, node), width=_WIDTH
    )
    for outcome in outcomes:
        with collected(problems):
            try:
                peers[outcome.item.name] = outcome.result()
            except NodeUnavailable:
                if outcome.item.shards:
                    raise
    return Fleet(peers, tuple(problems))


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse unfinished moves, and shards that are missing on the source or also elsewhere."""
    topology, plan, fleet = context.topology, context.plan, context.need(look)
    yield from fleet.problems
    unfinished = others(context)
    # The target of another move has copies, which must not be dropped.
    clones = {move.target for move, _ in unfinished}
    for name, peer in fleet.peers.items():
        if topology.nodes[name].shards and (peer.format or 0) < WITH_MOVES:
            said = "is missing" if peer.format is None else f"has format {peer.format}"
            yield PreflightRefused(
                f"node {name}",
                "no_journal",
                f"schema shardctl {said}, so the node has no journal of moves",
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
                    f"schemas of shards to move are missing: {listed(missing)}",
                    hint="run `shardctl verify`, and check that this topology file is the newest",
                )
        elif (
            name != plan.target and name not in clones and peer.live
        ):  # the checks of the target report its schemas
            yield schema_in_the_way(
                name,
                f"it has shards that node {plan.source} owns",
                sorted(peer.live),
                hint="check that the copy has no rows that its owner lacks, then drop it",
            )
    for move, known in unfinished:
        yield PreflightRefused(
            f"node {', '.join(known)}",
            "move_unfinished",
            f"move {move.id} ({move.source} to {move.target}) is {move.state}",
            hint=f"run `shardctl moves show {move.id}`, then finish it with `shardctl moves "
            "resume` or undo it with `shardctl moves abort`",
        )


def unproven(context: Context) -> list[str]:
    """List the moves that left unconfirmed retired copies on the target.

    All nodes' journals are read: the target's server need not run.
    """
    newest = (journal.newest(known.values()) for known in _copies(context).values())
    return [
        move.id
        for move in newest
        if move is not None and move.source == context.plan.target and not move.state.terminal
    ]


def others(context: Context) -> list[tuple[Move, list[NodeName]]]:
    """Return the other unfinished moves, by their newest record, with the nodes that have one."""
    found = []
    for known in _copies(context).values():
        newest = journal.newest(known.values())
        if newest is not None and not newest.state.closed and newest.id != context.plan.id:
            found.append((newest, list(known)))
    return found


def systems(context: Context) -> set[str]:
    """Return the system identifiers of the cluster's servers."""
    fleet = context.of(look)
    return {peer.system for peer in fleet.peers.values()} if fleet is not None else set()


def _copies(context: Context) -> dict[str, dict[NodeName, Move]]:
    copies: dict[str, dict[NodeName, Move]] = defaultdict(dict)
    fleet = context.of(look)
    for name, peer in fleet.peers.items() if fleet is not None else ():
        for move in peer.moves:
            copies[move.id][name] = move
    return copies


def _ask(context: Context, node: Node) -> Peer:
    topology, schemas = context.topology, list(context.plan.schemas)
    try:
        with connect(
            node, topology.database, purpose=context.purpose, autocommit=True, observing=True
        ) as session:
            row = cluster.read(session) if cluster.is_present(session) else None
            live = session.execute(QUERIES["live"], {"schemas": schemas})
            (system,) = queries.one(session, _SYSTEM)
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
