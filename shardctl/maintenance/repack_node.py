"""One node's part of a repack: a few tables at a time, watched while pg_repack is at them."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError
from shardctl.libpq import reason_of
from shardctl.maintenance import repack_clean, repack_look, repack_program
from shardctl.maintenance.repack import COMMAND, room
from shardctl.maintenance.repack_look import MARK, QUERIES
from shardctl.maintenance.repack_program import Order
from shardctl.meter import BYTES, size
from shardctl.postgres.connection import NodeLost, NodeUnavailable, connect
from shardctl.postgres.repack_left import LOCK_CLASS
from shardctl.state import events, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.fanout import Progress
    from shardctl.maintenance.repack import Candidate, Plan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_WAITS = re.compile(r"Waiting for \d+ transactions to finish. First PID: (\d+)")
_PRINTED = re.compile(r"(?:ERROR|FATAL|WARNING): +(?:query failed: )?(?:ERROR: +)?(.+)")
_TIMED_OUT = ("timed out", "unsafe queries remain")


@dataclass(frozen=True, slots=True)
class Repacked:
    """A table that was written again, and its bytes with indexes and TOAST."""

    candidate: Candidate
    before_bytes: int
    after_bytes: int


class NodeWork:
    """The tables of one node, and what has become of them so far."""

    def __init__(
        self,
        topology: Topology,
        name: NodeName,
        plan: Plan,
        session: Connection,
        *,
        progress: Progress,
        notice: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.name = name
        self.session = session
        """It holds the node's lock."""
        self.chosen = [one for one in plan.chosen if one.node == name]
        self.repacked: list[Repacked] = []
        self.left: dict[Candidate, str] = {}
        self._topology, self._node = topology, topology.nodes[name]
        self._options, self._means = plan.options, plan.means[name]
        self._progress, self._notice, self._stop = progress, notice, stop
        self._running: dict[int, Candidate] = {}
        self._waiting: dict[int, str] = {}
        self._held_up: dict[int, str] = {}
        self._begun, self._reported = False, 0
        self._mutex = threading.Lock()
        self._lost = False

    @property
    def oids(self) -> set[int]:
        """The numbers of the chosen tables."""
        return {one.table.oid for one in self.chosen}

    @property
    def done(self) -> bool:
        """Whether all of them are repacked."""
        return len(self.repacked) == len(self.chosen)

    def run(self, stays: Mapping[int, str]) -> None:
        """Repack them, but for those whose leftovers (`stays`) are in pg_repack's way.

        Raises NodeLost when the session with the node is gone.
        """
        self.left = {one: stays[one.table.oid] for one in self.chosen if one.table.oid in stays}
        todo = [one for one in self.chosen if one not in self.left]
        self._report()
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=[ended])
        watcher.start()
        try:
            outcomes = fanout.run(todo, self._one, width=self._options.jobs, stop=self._stop)
        finally:
            ended.set()
            watcher.join()
        for outcome in outcomes:
            if isinstance(outcome.error, psycopg.Error):
                raise NodeLost(self.name, reason_of(outcome.error)) from outcome.error
            if isinstance(outcome.error, NodeUnavailable):
                raise NodeLost(self.name, outcome.error.reason) from outcome.error
            outcome.result()

    def _connect(self) -> Connection:
        """Open a session of its own: threads do not share one, for they use transactions."""
        purpose = lock.purpose(COMMAND)
        return connect(self._node, self._topology.database, purpose=purpose, autocommit=True)

    def _one(self, one: Candidate) -> None:
        """Repack one table; whatever keeps it from that is written down in `left`."""
        if self._lost:
            return
        try:
            self.session.execute("SELECT")  # a command that has lost the lock must not go on
            with self._connect() as session:
                why = self._repack(session, one)
        except (psycopg.Error, NodeUnavailable):
            self._lost = True
            raise
        if why is not None:
            self.left[one] = why
        self._report()

    def _repack(self, session: Connection, one: Candidate) -> str | None:
        """Let pg_repack write it again; give None where it did, or why it did not."""
        oid = one.table.oid
        before = self._measure(session, oid)
        if before is None:
            return "the table no longer exists"
        if before[0] != one.table.file:
            return "another session rewrote it after the plan was made"
        with self._mutex:
            sizes = [before[1], *(other.table.size_bytes for other in self._running.values())]
            self._running[oid] = one
        try:
            why = self._no_room(session, sizes)
            if why is not None:
                return why
            output: list[str] = []
            code = self._run(session, one, output)
        finally:
            with self._mutex:
                del self._running[oid]
                self._waiting.pop(oid, None)
        after = self._measure(session, oid)
        written = after is not None and after[0] != before[0]
        stays = None if written and code == 0 else repack_clean.of_table(session, oid)
        if written and after is not None:
            given = f"{before[1]} -> {after[1]} bytes"
            events.record(session, COMMAND, f"{MARK}{after[0]}: {one.name}, {given}")
            logger.info("node %s: %s: %s", self.name, one.name, given)
            self.repacked.append(Repacked(one, before[1], after[1]))
            return None
        why = self._reason(oid, code, output)
        return why if stays is None else f"{why}; {stays}"

    def _run(self, session: Connection, one: Candidate, output: list[str]) -> int | None:
        means, table = self._means, one.table
        login = repack_program.conninfo(self._node, self._topology.database, major=means.major)
        argv = repack_program.arguments(
            means.program,
            means.version,
            login,
            Order(table.schema, table.name, table.order_by),
            self._options.settings,
        )

        def line(text: str) -> None:
            logger.debug("node %s: %s: %s", self.name, one.name, text)
            waits = _WAITS.search(text)
            if waits is None:
                output.append(text)
            elif table.oid not in self._waiting:
                self._wait(session, one, int(waits[1]))

        return repack_program.run(argv, line)

    def _wait(self, session: Connection, one: Candidate, pid: int) -> None:
        """Report once that a table waits for a transaction that is older than its copy."""
        row = session.execute(QUERIES["session"], {"pid": pid}).fetchone()
        who = row[0] if row else f"session {pid}"
        self._waiting[one.table.oid] = who
        self._notice(f"node {self.name}: {one.name} waits for the transaction of {who} to end")
        self._report()

    def _measure(self, session: Connection, oid: int) -> tuple[int, int] | None:
        """Give a table's file and bytes; None where it is gone."""
        return session.execute(QUERIES["measure"], {"table": oid}).fetchone()

    def _no_room(self, session: Connection, sizes: list[int]) -> str | None:
        """Report that the disk has too little room for tables of these sizes at once, or None."""
        directory = repack_look.data_directory(session, self._node)
        if not self._means.measured or directory is None:
            return None
        try:
            free = repack_look.free_bytes(self._node, directory)
        except ShardctlError as error:
            return f"free disk space could not be checked: {error.message}"
        need = room(sizes)
        if need <= free:
            return None
        return (
            f"repacking these tables at once needs {size(need)} of free disk, and the node has "
            f"{size(free)}"
        )

    def _reason(self, oid: int, code: int | None, output: list[str]) -> str:
        """Explain why pg_repack left a table as it was, by its last message."""
        if self._stop.is_set():
            return "stopped"
        errors = [match[1] for text in output if (match := _PRINTED.match(text))]
        if any(words in text for text in errors for words in _TIMED_OUT):
            by = self._held_up.get(oid)
            seconds = self._options.settings.wait_timeout_s
            return f"the table was in use for more than {seconds} s" + (f" by {by}" if by else "")
        return (
            errors[0]
            if errors
            else f"pg_repack was killed, or exited with code {code} and no message"
        )

    def _watch(self, ended: threading.Event) -> None:
        """Note who holds tables up; once they are to stop, end pg_repack's sessions there."""
        try:
            with self._connect() as session:
                while not ended.wait(_POLL_S):
                    with self._mutex:
                        running = list(self._running)
                    if self._stop.is_set():
                        for oid in running:
                            session.execute(QUERIES["end"], {"class": LOCK_CLASS, "table": oid})
                    elif running:
                        found = session.execute(QUERIES["blockers"], {"tables": running})
                        self._held_up.update(found.fetchall())
        except (psycopg.Error, NodeUnavailable) as error:
            # The tables in work meet the same error, and report it.
            logger.warning(
                "node %s: cannot watch for sessions that block pg_repack any longer: %s",
                self.name,
                error,
            )

    def _report(self) -> None:
        """Show the node's progress: bytes of finished tables, and the session that it waits for."""
        with self._mutex:
            who = next(iter(self._waiting.values()), None)
            done = sum(one.candidate.table.size_bytes for one in self.repacked)
            done += sum(one.table.size_bytes for one in self.left)
            if not self._begun:
                total = sum(one.table.size_bytes for one in self.chosen)
                self._progress.expect(self.name, "repacking", total, BYTES)
                self._begun = True
            self._progress.waits(self.name, who)
            self._progress.advance(self.name, done - self._reported)
            self._reported = done
