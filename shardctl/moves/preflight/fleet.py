"""All nodes: none but the source has the shards, and no other move of its nodes is running."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import together
from shardctl.meter import listed
from shardctl.moves import file
from shardctl.moves import plan as planning
from shardctl.moves.plan import PreflightRefused, SourceUnfit
from shardctl.moves.preflight.subject import refused
from shardctl.postgres import catalog
from shardctl.postgres.connection import NodeUnavailable
from shardctl.provision import maps
from shardctl.provision.refusals import schema_in_the_way
from shardctl.state import cluster, ledger, observer
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.state.ledger import Copy, Entry
    from shardctl.state.reverses import Reverse
    from shardctl.topology.model import Node, NodeName


@dataclass(frozen=True, slots=True)
class Peer:
    """One node, in the move or not.

    `is_member` tells whether it has schema shardctl, and with it a journal; `live` are the schemas
    of moved shards that the node has, `copies` what its journal knows.
    """

    is_member: bool
    live: tuple[str, ...]
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes that answer; one without shards may be missing, and so may one not in the move."""

    peers: Mapping[NodeName, Peer]
    problems: tuple[ShardctlError, ...] = ()
    away: tuple[NodeUnavailable, ...] = ()
    """Why nodes that own shards and are not in the move could not be asked."""

    def entries(self) -> tuple[Entry, ...]:
        """Give the moves that their journals know."""
        return ledger.entries(copy for peer in self.peers.values() for copy in peer.copies)


def look_at_map(context: Context) -> None:
    """Check that the map is still the plan's; raises what `maps.require` raises."""
    plan = context.plan
    maps.require(
        context.topology,
        plan.map_version,
        purpose=context.purpose,
        needed=(plan.source, plan.target),
    )


def look(context: Context) -> Fleet:
    """Ask every node; the result has the errors of those that could not be asked."""
    topology, schemas = context.topology, list(context.plan.schemas)

    def ask(session: Connection, node: Node) -> Peer:
        try:
            row = cluster.read(session) if cluster.is_present(session) else None
            return Peer(
                row is not None,
                tuple(catalog.present(session, schemas)),
                ledger.copies(session, topology, node.name, row),
            )
        except psycopg.Error as error:
            raise refused(node, topology.database.user, error) from error

    asked = observer.ask(topology, ask, purpose=context.purpose)
    needed = maps.required(topology, (context.plan.source, context.plan.target))
    problems: list[ShardctlError] = []
    away: list[NodeUnavailable] = []
    for name, error in asked.errors.items():
        if not isinstance(error, NodeUnavailable):
            problems += error.parts()
        elif topology.nodes[name].shards and name in needed:
            problems.append(error)
        elif topology.nodes[name].shards:
            away.append(error)
    return Fleet(asked.values, tuple(problems), tuple(away))


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse an unfinished move of one of its nodes, and shards missing or also elsewhere."""
    topology, plan, fleet = context.topology, context.plan, context.need(look)
    yield from fleet.problems
    unfinished = others(context)
    # The target of another move has copies, which must not be dropped.
    clones = {one.move.target for one in unfinished}
    for name, peer in fleet.peers.items():
        if topology.nodes[name].shards and not peer.is_member:
            yield PreflightRefused(
                f"node {name}",
                "no_journal",
                "schema shardctl is missing, so the node has no journal of moves",
                hint="run `shardctl init`, which makes it",
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
    for one in unfinished:
        if planning.apart(one.move, plan):
            continue
        last = max(one.steps, key=lambda step: step.started, default=None)
        yield ledger.in_the_way(one, "" if last is None else f", at step {last.step}")


def notes(context: Context) -> Iterator[str]:
    """Say which nodes do not learn of the move for now."""
    for error in context.need(look).away:
        yield (
            f"{error.message}: the move does not need it; it keeps an older map until "
            "`shardctl init`"
        )
    for one in others(context):
        move = one.move
        if planning.apart(move, context.plan):
            yield (
                f"move {move.id} ({move.source} to {move.target}) is open, too: the cutovers take "
                "turns"
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
    plan, fleet = context.plan, context.of(look)
    open_ones = []
    for entry in fleet.entries() if fleet is not None else ():
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
    fleet = context.of(look)
    entries = fleet.entries() if fleet is not None else ()
    return [one for one in entries if one.open and one.move.id != context.plan.id]


def look_at_file(context: Context) -> None:
    """See that the new owners could be written into the topology file; raises PreflightRefused."""
    if problems := [*file.problems(context.topology, context.plan)]:
        raise together(problems)
