"""All nodes: none but the source has the shards, and no other move is running."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.meter import listed
from shardctl.moves import file
from shardctl.moves import plan as planning
from shardctl.moves.preflight.subject import refused
from shardctl.moves.refusals import PreflightRefused, SourceUnfit, collected
from shardctl.postgres import catalog
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import maps
from shardctl.provision.refusals import schema_in_the_way
from shardctl.state import cluster, journal, ledger, lock, reverses
from shardctl.topology import ranges
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.state.journal import Move, StepRecord
    from shardctl.state.reverses import Kept, Reverse
    from shardctl.topology.model import Node

_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Peer:
    """One node, in the move or not.

    `is_member` tells whether it has schema shardctl, and with it a journal; `live` are the schemas
    of moved shards that the node has.
    """

    is_member: bool
    moves: tuple[Move, ...]
    live: tuple[str, ...]
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """What it keeps for reverses of moves to it, by these moves' ids."""
    steps: Mapping[str, Sequence[StepRecord]] = field(default_factory=dict)
    """The steps of unfinished moves in its journal, by these moves' ids."""
    holder: str | None = None
    """The command that holds the node's lock."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes that answer; one without shards may be missing, and so may one not in the move."""

    peers: Mapping[NodeName, Peer]
    problems: tuple[ShardctlError, ...]
    away: tuple[NodeUnavailable, ...] = ()
    """Why nodes that own shards and are not in the move could not be asked."""


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
    peers: dict[NodeName, Peer] = {}
    problems: list[ShardctlError] = []
    away: list[NodeUnavailable] = []
    needed = maps.required(context.topology, (context.plan.source, context.plan.target))
    outcomes = fanout.run(
        context.topology.nodes.values(), lambda node: _ask(context, node), width=_WIDTH
    )
    for outcome in outcomes:
        with collected(problems):
            try:
                peers[outcome.item.name] = outcome.result()
            except NodeUnavailable as error:
                if outcome.item.shards and outcome.item.name in needed:
                    raise
                if outcome.item.shards:
                    away.append(error)
    return Fleet(peers, tuple(problems), tuple(away))


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse unfinished moves, and shards that are missing on the source or also elsewhere."""
    topology, plan, fleet = context.topology, context.plan, context.need(look)
    yield from fleet.problems
    unfinished = others(context)
    # The target of another move has copies, which must not be dropped.
    clones = {move.target for move, _ in unfinished}
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
    for move, known in unfinished:
        peers = (fleet.peers.get(NodeName(node)) for node in (move.source, move.target))
        holder = next((one.holder for one in peers if one is not None and one.holder), None)
        yield PreflightRefused(
            f"node {', '.join(known)}",
            "move_unfinished",
            f"move {move.id} ({move.source} to {move.target}, started by {move.who}) is "
            f"{ledger.condition(move.id, holder)}{_step(fleet, move)}",
            hint=ledger.hint(move.id, holder),
        )


def notes(context: Context) -> Iterator[str]:
    """Say which nodes do not learn of the move for now."""
    for error in context.need(look).away:
        yield (
            f"{error.message}: the move does not need it; it keeps an older map until "
            "`shardctl init`"
        )


def judge_reverses(context: Context) -> Iterator[PreflightRefused]:
    """Refuse a move that would take from an open reverse what it needs, or keep what one lent."""
    if context.plan.options.finish_reverse:
        return
    for move, reverse in in_the_way(context):
        moved = f"it moved shards {ranges.of(move.shards)} from {move.source} to {move.target} and"
        finish = f"run `shardctl moves finish {move.id}`, or give --finish-reverse"
        if reverse.state != "open":
            yield PreflightRefused(
                f"move {move.id}",
                "identity_left",
                f"{moved} has not put back the replica identities of their tables",
                hint=finish,
            )
            continue
        yield PreflightRefused(
            f"move {move.id}",
            "reverse_open",
            f"{moved} can be reversed until {reverse.until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, "
            "which this move would end",
            hint=f"{finish}; to have the shards back, run `shardctl moves reverse {move.id}`",
        )


def notes_on_reverses(context: Context) -> Iterator[str]:
    """Say which moves can no longer be reversed when this one begins."""
    if context.plan.options.finish_reverse:
        for move, _ in in_the_way(context):
            yield f"move {move.id} can no longer be reversed then (--finish-reverse)"


def in_the_way(context: Context) -> list[tuple[Move, Reverse]]:
    """Return the moves whose open reverse this move would end, or that are to be finished first.

    One of the same shards, and any at a node that a clone copies or replaces.
    """
    plan, fleet = context.plan, context.of(look)
    if fleet is None:
        return []
    newest = {
        move: one
        for move, known in _copies(context).items()
        if (one := journal.newest(known.values())) is not None
    }
    open_ones = []
    for move in newest.values():
        peer = fleet.peers.get(NodeName(move.target))
        begun = newest.get(reverses.id_of(move) or "")
        kept = peer.kept.get(move.id) if peer is not None else None
        reverse = reverses.of(move, begun, kept, datetime.now(UTC))
        if reverse is None or reverse.move == plan.id:
            continue
        # What has ended by itself has not put back what its tables were lent.
        if reverse.state != "open" and not (planning.lent(move) and reverse.can):
            continue
        copied = not context.streams and {plan.source, plan.target} & {move.source, move.target}
        if copied or set(plan.shards) & set(move.shards):
            open_ones.append((move, reverse))
    return open_ones


def others(context: Context) -> list[tuple[Move, list[NodeName]]]:
    """Return the other unfinished moves, by their newest record, with the nodes that have one."""
    found = []
    for known in _copies(context).values():
        newest = journal.newest(known.values())
        if newest is not None and not newest.state.closed and newest.id != context.plan.id:
            found.append((newest, list(known)))
    return found


def _step(fleet: Fleet, move: Move) -> str:
    """Name the step of a move that began last; empty where no step has begun."""
    begun = [one for peer in fleet.peers.values() for one in peer.steps.get(move.id, ())]
    last = max(begun, key=lambda one: one.started, default=None)
    return "" if last is None else f", at step {last.step}"


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
            has_moves = row is not None and row.cluster == topology.cluster
            moves = tuple(journal.read(session)) if has_moves else ()
            return Peer(
                is_member=row is not None,
                live=tuple(catalog.present(session, schemas)),
                moves=moves,
                holder=lock.holder(session) if has_moves else None,
                kept=reverses.read(session, [one for one in moves if one.target == node.name]),
                steps={
                    one.id: journal.steps(session, one.id) for one in moves if not one.state.closed
                },
            )
    except psycopg.Error as error:
        raise refused(node, topology.database.user, error) from error


def look_at_file(context: Context) -> list[PreflightRefused]:
    """Check whether the new owners could be written into the topology file."""
    return file.problems(context.topology, context.plan)


def judge_file(context: Context) -> list[PreflightRefused]:
    """Refuse a file that could not be written."""
    return context.need(look_at_file)


def note_new_node(context: Context) -> Iterator[str]:
    """Report what the new node will not have."""
    yield f"node {context.plan.target} will have no standby and no backup"
