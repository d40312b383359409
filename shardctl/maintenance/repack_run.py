"""Carry a repack out: one call of pg_repack for each table, under the nodes' locks.

It can stop anywhere: pg_repack swaps a table in one transaction.
"""

from __future__ import annotations

import re
import signal
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import Incomplete, Interrupted, ShardctlError, together
from shardctl.libpq import reason_of
from shardctl.maintenance import repack_look, repack_program
from shardctl.maintenance.repack import COMMAND
from shardctl.maintenance.repack_look import MARK, QUERIES
from shardctl.maintenance.repack_program import Order
from shardctl.meter import BYTES
from shardctl.postgres.connection import NodeLost
from shardctl.state import cluster, events, ledger, lock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from shardctl.fanout import Progress
    from shardctl.maintenance.repack import Candidate, Plan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology

_WIDTH = 8
_SHOWN = 3
_PRINTED = re.compile(r"(?:ERROR|FATAL|WARNING): +(?:query failed: )?(?:ERROR: +)?(.+)")
_WAITS = re.compile(r"NOTICE: (Waiting for .+)")


def repack_unfinished(left: Mapping[Candidate, str], count: int) -> Incomplete:
    """Report tables that were to be repacked and are as they were."""
    listed = "; ".join(
        f"node {one.node}: {one.name}: {why}" for one, why in list(left.items())[:_SHOWN]
    )
    more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return Incomplete(
        "repack_unfinished",
        f"{len(left):,} of {count:,} tables were not repacked and are unchanged: {listed}{more}",
        hint="fix the causes, then run the same command again: it repacks only these tables",
    )


@dataclass(frozen=True, slots=True)
class Repacked:
    """A table that was written again, and its bytes with indexes and TOAST."""

    candidate: Candidate
    before_bytes: int
    after_bytes: int


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
    """Repack the chosen tables, on all nodes at once; `notice` gets what pg_repack waits for.

    Raises NodeLocked, NodeUnavailable and move_unfinished with nothing done.
    """
    with lock.held(topology, plan.nodes, command=COMMAND) as locks:
        _require_no_move(topology, locks)
        work = _Work(topology, plan, progress, notice)
        errors: list[ShardctlError] = []
        try:
            for outcome in fanout.run(
                locks.items(), work.node, width=_WIDTH, stop=work.stop, cancel=work.cancel
            ):
                if isinstance(outcome.error, psycopg.Error):
                    errors.append(NodeLost(outcome.item[0], reason_of(outcome.error)))
                else:
                    outcome.result()
        except KeyboardInterrupt:
            errors = [
                Interrupted(
                    f"interrupted: {len(work.repacked):,} of {len(plan.chosen):,} tables are "
                    "repacked, the rest are unchanged",
                    hint="run the same command again: it repacks only the rest",
                )
            ]
        else:
            if work.left:
                errors.append(repack_unfinished(work.left, len(plan.chosen)))
        return Result(tuple(work.repacked), work.left, together(errors) if errors else None)


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


class _Work:
    """The tables, and what has become of them so far."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        progress: Progress,
        notice: Callable[[str], None],
    ) -> None:
        self.stop = threading.Event()
        self.repacked: list[Repacked] = []
        self.left: dict[Candidate, str] = {}
        self._topology, self._plan = topology, plan
        self._progress, self._notice = progress, notice
        self._running: set[subprocess.Popen[str]] = set()

    def cancel(self) -> None:
        """Let every pg_repack clean up and end."""
        while self._running:
            self._running.pop().send_signal(signal.SIGINT)

    def node(self, locked: tuple[NodeName, Connection]) -> None:
        """Repack a node's tables; raises psycopg.Error when its session is lost."""
        name, session = locked
        chosen = [one for one in self._plan.chosen if one.node == name]
        total = sum(one.table.size_bytes for one in chosen)
        self._progress.expect(name, "repacking", total, BYTES)
        table = partial(self._table, session)
        for outcome in fanout.run(chosen, table, width=self._plan.options.jobs, stop=self.stop):
            outcome.result()
        count = sum(one.candidate.node == name for one in self.repacked)
        done = "done" if count == len(chosen) else "unfinished"
        events.record(session, COMMAND, f"{done}: {count} of {len(chosen)} tables")

    def _table(self, session: Connection, one: Candidate) -> None:
        """Repack one table; whatever keeps it from that is written down in `left`."""
        before = self._measure(session, one)  # with the lock's session: it is held as yet
        why = None
        if before is None:
            why = "the table no longer exists"
        elif before[0] != one.table.file:
            why = "another session rewrote it after the plan was made"
        else:
            said = self._call(one)
            after = self._measure(session, one)
            if after is None or after[0] == before[0]:
                why = "stopped" if self.stop.is_set() else said
            else:
                given = f"{before[1]} -> {after[1]} bytes"
                events.record(session, COMMAND, f"{MARK}{after[0]}: {one.name}, {given}")
                self.repacked.append(Repacked(one, before[1], after[1]))
        if why is not None:
            self.left[one] = why
        self._progress.waits(one.node, None)
        self._progress.advance(one.node, one.table.size_bytes)

    def _call(self, one: Candidate) -> str:
        """Call pg_repack; give the first that it had to complain about."""
        means, table, topology = self._plan.means[one.node], one.table, self._topology
        node = topology.nodes[one.node]
        argv = repack_program.arguments(
            means.program,
            means.version,
            repack_program.conninfo(node, topology.database, major=means.major),
            Order(table.schema, table.name, table.order_by),
            self._plan.options.settings,
        )
        complaint, waiting = "", False
        with repack_program.start(argv) as process:
            self._running.add(process)
            for line in process.stdout or ():
                if printed := _PRINTED.match(line):
                    complaint = complaint or printed[1]
                elif (waits := _WAITS.search(line)) and not waiting:
                    waiting = True
                    self._notice(f"node {one.node}: {one.name}: pg_repack: {waits[1]}")
                    self._progress.waits(one.node, f"{one.name}: {waits[1]}")
        self._running.discard(process)
        return complaint or f"pg_repack ended with code {process.returncode} and no message"

    def _measure(self, session: Connection, one: Candidate) -> tuple[int, int] | None:
        """Give a table's file and bytes; None where it is gone."""
        return session.execute(QUERIES["measure"], {"table": one.table.oid}).fetchone()
