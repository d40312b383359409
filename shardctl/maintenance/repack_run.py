"""Carry a repack out: table by table under the nodes' locks, so that it can stop anywhere."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import Incomplete, Interrupted, ShardctlError, together
from shardctl.libpq import reason_of
from shardctl.maintenance import repack_clean, repack_look
from shardctl.maintenance.repack import COMMAND
from shardctl.maintenance.repack_node import NodeWork
from shardctl.meter import sentences
from shardctl.postgres.connection import NodeLost
from shardctl.state import cluster, events, ledger, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.maintenance.repack import Candidate, Plan
    from shardctl.maintenance.repack_node import Repacked
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology

logger = logging.getLogger(__name__)

_WIDTH = 8
_SHOWN = 3


def repack_unfinished(left: Mapping[Candidate, str], count: int) -> Incomplete:
    """Report tables that were to be repacked and are as they were."""
    whys = [f"node {one.node}: {one.name}: {why}" for one, why in left.items()]
    return Incomplete(
        "repack_unfinished",
        f"{len(left):,} of {count:,} tables were not repacked and are unchanged: "
        f"{sentences(whys, most=_SHOWN)}",
        hint="fix the causes, then run the same command again: it repacks only these tables",
    )


def leftovers_stay(node: NodeName, stays: Mapping[int, str]) -> Incomplete:
    """Report what killed runs left and could not be dropped."""
    oid, why = next(iter(stays.items()))
    return Incomplete(
        "leftovers_stay",
        f"node {node}: remains of killed pg_repack runs could not be dropped for "
        f"{len(stays)} tables: table {oid}: {why}",
        hint="wait until no session uses these tables, then run the same command again",
    )


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a repack; `error` None is that nothing is left to do.

    `left` are tables that were begun, or were to be, and are as they were, with the reason.
    """

    repacked: tuple[Repacked, ...]
    left: Mapping[Candidate, str]
    error: ShardctlError | None


def carry_out(
    topology: Topology, plan: Plan, progress: Progress, notice: Callable[[str], None]
) -> Result:
    """Repack the chosen tables, node by node at once, after cleaning up what killed runs left.

    `notice` shows the session that a table waits for. On Ctrl-C running tables are given up,
    which leaves them as they were. Raises NodeLocked, NodeUnavailable and move_unfinished with
    nothing done.
    """
    with lock.held(topology, plan.nodes, command=COMMAND) as locks:
        _require_no_move(topology, locks)
        stop = threading.Event()
        works = [
            NodeWork(topology, name, plan, session, progress=progress, notice=notice, stop=stop)
            for name, session in locks.items()
        ]
        errors: list[ShardctlError] = []
        left: dict[Candidate, str] = {}
        try:
            errors += fanout.collect(works, _work, width=_WIDTH, stop=stop).errors
        except KeyboardInterrupt:
            errors = [_interrupted(works, plan.chosen)]
        for work in works:
            left |= work.left
        if left and not stop.is_set():
            errors.append(repack_unfinished(left, len(plan.chosen)))
        repacked = tuple(one for work in works for one in work.repacked)
        return Result(repacked, left, together(errors) if errors else None)


def _require_no_move(topology: Topology, locks: Mapping[NodeName, Connection]) -> None:
    """See that no move has begun since the plan was made: now none can; raises move_unfinished."""
    refusals = repack_look.unfinished(
        {
            name: ledger.copies(session, topology, name, cluster.read(session))
            for name, session in locks.items()
        }
    )
    if refusals:
        raise together(refusals)


def _work(work: NodeWork) -> None:
    """Do one node's part; raises leftovers_stay, and NodeLost when the other nodes go on."""
    try:
        stays = repack_clean.all_of(work.session)
        work.run(stays)
        others = {oid: why for oid, why in stays.items() if oid not in work.oids}
        done = f"{len(work.repacked)} of {len(work.chosen)} tables"
        events.record(
            work.session, COMMAND, f"done: {done}" if work.done else f"unfinished: {done}"
        )
    except psycopg.Error as error:
        raise NodeLost(work.name, reason_of(error)) from error
    if others:
        raise leftovers_stay(work.name, others)


def _interrupted(works: Sequence[NodeWork], chosen: Sequence[Candidate]) -> Interrupted:
    done = sum(len(work.repacked) for work in works)
    return Interrupted(
        f"interrupted: {done:,} of {len(chosen):,} tables are repacked, the rest are unchanged",
        hint="run the same command again: it repacks only the rest",
    )
