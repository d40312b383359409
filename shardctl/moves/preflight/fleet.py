"""All nodes: none but the source has the shards, and no other move of its nodes is running."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from shardctl.errors import ShardctlError, together
from shardctl.meter import listed
from shardctl.moves import file
from shardctl.moves import plan as planning
from shardctl.moves.plan import PreflightRefused, SourceUnfit
from shardctl.moves.preflight.subject import refused
from shardctl.postgres import catalog
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import maps
from shardctl.provision.refusals import schema_in_the_way
from shardctl.state import ledger, observer
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.provision.observe import Said
    from shardctl.state.journal import Move
    from shardctl.state.ledger import Entry
    from shardctl.state.observer import Asked
    from shardctl.state.reverses import Reverse
    from shardctl.topology.model import Node


class Peer(NamedTuple):
    """What a node that answers says of the map and of moves, and which moved shards it has."""

    said: Said
    live: set[str]


def look(context: Context) -> Asked[Peer]:
    """Ask every node."""
    topology, schemas = context.topology, context.plan.schemas

    def ask(session: Connection, node: Node) -> Peer:
        try:
            return Peer(maps.known(topology, session, node), catalog.present(session, schemas))
        except psycopg.Error as error:
            raise refused(node, topology.database.user, error) from error

    return observer.ask(topology, ask, purpose=context.purpose)


def entries(context: Context) -> tuple[Entry, ...]:
    """Give the moves that the journals of nodes that answer know."""
    peers = context.need(look).values.values()
    return ledger.entries(copy for peer in peers for copy in peer.said.journal)


def away(context: Context) -> list[NodeUnavailable]:
    """List why nodes that own shards and are not needed could not be asked."""
    needed = maps.required(context.topology, (context.plan.source, context.plan.target))
    problems = context.need(look).problems
    return [e for e in problems if isinstance(e, NodeUnavailable) and e.node not in needed]


def judge(context: Context) -> Iterator[ShardctlError | str]:
    """Refuse another map, an unfinished move of its nodes, and shards missing or also elsewhere.

    Report which nodes do not learn of the move for now.
    """
    topology, plan, asked = context.topology, context.plan, context.need(look)
    said = {name: peer.said for name, peer in asked.values.items()}
    needed = (plan.source, plan.target)
    try:
        maps.proved(topology, said, asked.problems, needed=needed).require(plan.map_version)
    except ShardctlError as error:
        yield from error.parts()
    unfinished = others(context)
    # The target of another move has copies, which must not be dropped.
    clones = {one.move.target for one in unfinished}
    for name, peer in asked.values.items():
        if topology.nodes[name].shards and peer.said.version is None:
            yield PreflightRefused(
                f"node {name}",
                "no_journal",
                "schema shardctl is missing, so the node has no journal of moves",
                hint="run `shardctl init`, which makes it",
            )
        if name == plan.source:
            if missing := sorted({*plan.schemas} - peer.live):
                yield SourceUnfit(
                    name,
                    "shards_missing",
                    f"schemas of shards to move are missing: {listed(missing)}",
                    hint="run `shardctl verify`, and check that this topology file is the newest",
                )
        # The checks of the target report its schemas.
        elif name != plan.target and name not in clones and peer.live:
            yield schema_in_the_way(
                name,
                f"it has shards that node {plan.source} owns",
                sorted(peer.live),
                hint="check that the copy has no rows that its owner lacks, then drop it",
            )
    for one in unfinished:
        move, last = one.move, max(one.steps, key=lambda step: step.started, default=None)
        if not planning.apart(move, plan):
            yield ledger.in_the_way(one, "" if last is None else f", at step {last.step}")
            continue
        yield (
            f"move {move.id} ({move.source} to {move.target}) is open, too: the cutovers take turns"
        )
    for lacking in away(context):
        yield (
            f"{lacking.message}: the move does not need it; it keeps an older map until "
            "`shardctl init`"
        )


def judge_reverses(context: Context) -> Iterator[PreflightRefused]:
    """Refuse a move that would take from an open reverse what it needs, or keep what one lent."""
    if context.plan.options.finish_reverse:
        return
    for move, reverse in in_the_way(context):
        finish = f"run `shardctl moves finish {move.id}`"
        if context.plan.group is None:  # `rebalance` and `node drain` have no such option
            finish += ", or give --finish-reverse"
        yield PreflightRefused(
            f"move {move.id}",
            "reverse_open" if reverse.state == "open" else "identity_left",
            f"it keeps what gives shards {ranges.of(move.shards)} back from {move.target} to "
            f"{move.source} until {reverse.until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, and what "
            "its tables were lent until it is finished",
            hint=f"{finish}; to have the shards back, run `shardctl moves reverse {move.id}`",
        )


def in_the_way(context: Context) -> list[tuple[Move, Reverse]]:
    """Return the moves whose open reverse this move would end, or that are to be finished first.

    One of the same shards, and any at a node that a clone copies or replaces.
    """
    plan, open_ones = context.plan, []
    for entry in entries(context):
        move, reverse = entry.move, entry.reverse
        if reverse is None or reverse.move == plan.id:
            continue
        # What has ended by itself has not put back what its tables were lent.
        if reverse.state != "open" and not (planning.lent(move) and reverse.can):
            continue
        copied = not context.streams and {plan.source, plan.target} & {move.source, move.target}
        if copied or set(plan.shards) & set(move.shards):
            open_ones.append((move, reverse))
    return open_ones


def others(context: Context) -> list[Entry]:
    """Return the other moves that have not ended."""
    return [one for one in entries(context) if one.open and one.move.id != context.plan.id]


def look_at_file(context: Context) -> None:
    """See that the new owners could be written into the topology file; raises PreflightRefused."""
    if problems := [*file.problems(context.topology, context.plan)]:
        raise together(problems)
