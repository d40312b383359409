"""The operations on the possibility to reverse a move: plan the reverse, or give it up."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.moves import ledger, reverse_kept
from shardctl.moves import plan as planning
from shardctl.moves.plan import COPY_INSTEAD, Reversed
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.postgres.logical import publication
from shardctl.provision import maps
from shardctl.state import events, journal, leash, lock, reverses
from shardctl.topology import routes
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardctl.moves.plan import MovePlan, Options
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology

logger = logging.getLogger(__name__)

FINISH = "moves finish"


def plan(topology: Topology, entry: Entry, options: Options) -> MovePlan:
    """Plan the reverse of a move; raises not_reversible, and what `planning.make` raises."""
    reverse, lsn = require_reversible(entry)
    move = entry.move
    decided = planning.make(topology, move.shards, move.source, 0, options, move=reverse)
    found = maps.agreed(
        topology,
        purpose=lock.purpose("moves reverse"),
        needed=(decided.source, decided.target),
    )
    return replace(
        decided,
        map_version=found.version,
        method=planning.STREAM,
        reverses=Reversed(move.id, lsn),
        lent=planning.lent(move),
    )


def require_reversible(entry: Entry) -> tuple[str, str]:
    """Give the id of the reverse, and from where it follows the target; raises not_reversible."""
    move, kept = entry.move, entry.reverse
    report, hint = move.report or {}, COPY_INSTEAD
    if entry.open:
        why, hint = f"it is {entry.state}", f"run `shardctl moves show {move.id}` to see its step"
    elif kept is None:
        why = "nothing was kept for its reverse (--keep-reverse)"
    elif kept.state == "open":
        return kept.move, report[journal.REVERSE_FROM]
    else:
        why = {
            "begun": f"move {kept.move} reverses it already",
            "reversed": f"move {kept.move} has reversed it",
            "expired": f"that was possible until {kept.until:%Y-%m-%d %H:%M:%S %Z}",
            "lost": f"node {move.target} has lost slot {kept.slot}, as at its limit of WAL",
            "finished": str(report.get(reverses.ENDED, "its reverse was aborted")),
        }[kept.state]
    raise Refused("not_reversible", f"move {move.id} cannot be reversed: {why}", hint=hint)


def require_finishable(entry: Entry) -> None:
    """See that a move has something to give up; raises nothing_to_finish."""
    kept = entry.reverse
    if kept is None or "finish" not in kept.can:
        raise Refused(
            "nothing_to_finish",
            f"move {entry.move.id}: its reverse is {kept.state if kept else 'not kept'}",
            hint="run `shardctl moves list` to see which moves can be finished",
        )


def finish(
    topology: Topology, entry: Entry, *, notice: Callable[[str], None] = logger.warning
) -> None:
    """Give up the possibility to reverse a move; its retired copies can be pruned then.

    The source may be away, or in the topology no more: what it has is left to `moves doctor`.
    Raises NodeLocked, NodeUnavailable, UsageError of the target, nothing_to_finish,
    identity_blocked, copy_triggers_left.
    """
    source, target = NodeName(entry.move.source), routes.node(topology, entry.move.target).name
    nodes = [target, source] if source in topology.nodes else [target]
    away = f"node {source} is not in {topology.path}"
    try:
        with lock.held(topology, nodes, command=FINISH) as sessions:
            _finish(topology, entry.move, sessions)
    except (NodeUnavailable, lock.NodeLocked) as error:
        if error.node != source:
            raise
        nodes, away = [target], error.message
        with lock.held(topology, nodes, command=FINISH) as sessions:
            _finish(topology, entry.move, sessions)
    if source not in nodes:
        notice(
            f"{away}; its retired copies stay closed: run `shardctl moves doctor` when that node "
            "can be changed"
        )


def _finish(topology: Topology, move: Move, sessions: Mapping[NodeName, Connection]) -> None:
    # The reverse may have begun since the operator looked.
    require_finishable(ledger.read(topology, purpose=lock.purpose(FINISH)).entry(move.id))
    reverse, there = reverses.id_of(move) or "", sessions[NodeName(move.target)]
    reverse_kept.forget_on_target(there, reverse)
    publication.take_identities_back(there, planning.lent(move))
    if (session := sessions.get(NodeName(move.source))) is not None:
        reverse_kept.forget_on_source(session, reverse)
    # Last: what was killed before is to be finished still.
    for session in sessions.values():
        reverses.note(session, move.id, reverses.ENDED, "`moves finish` gave it up")
        events.record(session, FINISH, f"move {move.id}: it cannot be reversed any more")


def finish_each(
    topology: Topology, moves: Iterable[str], *, notice: Callable[[str], None] = logger.warning
) -> None:
    """Give up reversing some moves, where that is possible; raises what `finish` raises."""
    purpose = lock.purpose(FINISH)
    for move in moves:
        entry = ledger.read(topology, purpose=purpose).entry(move)
        if entry.reverse is not None and "finish" in entry.reverse.can:
            finish(topology, entry, notice=notice)
            notice(f"move {move} can no longer be reversed")


def unguarded(entries: Iterable[Entry]) -> list[Entry]:
    """List the moves whose slot for a reverse nothing bounds, as after a restart of its server."""
    return [
        entry
        for entry in entries
        if (reverse := entry.reverse) is not None
        if reverse.state == "open" and reverse.held_bytes is not None and not reverse.watched
    ]


def guard(topology: Topology, entry: Entry) -> None:
    """Start the guard of a move's slot for a reverse again; raises NodeUnavailable.

    A reverse that has begun since has a guard of its own, which does not drop the slot in time.
    """
    purpose = lock.purpose("moves doctor")
    now = ledger.read(topology, purpose=purpose).entry(entry.move.id)
    move, reverse = now.move, now.reverse
    if reverse is None or not unguarded([now]):
        return
    node = topology.nodes[NodeName(move.target)]
    with (
        closing(connect(node, topology.database, purpose=purpose, autocommit=True)) as own,
        closing(connect(node, topology.database, purpose=purpose, autocommit=True)) as beside,
    ):
        leash.arm(
            own,
            beside,
            node.name,
            move=move.id,
            slot=reverse.slot,
            limit_bytes=reverse.limit_bytes or 0,
            keep_s=move.plan["options"]["keep_reverse_s"],
        )
