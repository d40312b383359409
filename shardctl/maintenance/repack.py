"""Repack: which tables are written again, in which order, and one call of pg_repack for each.

It can stop anywhere: pg_repack swaps a table in one transaction.
"""

from __future__ import annotations

import re
import signal
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import psycopg

from shardctl import fanout
from shardctl.errors import Incomplete, Interrupted, Refused, ShardctlError, together
from shardctl.libpq import reason_of
from shardctl.maintenance import repack_look
from shardctl.maintenance.repack_look import MARK, QUERIES
from shardctl.meter import BYTES, sentences, size
from shardctl.postgres import binaries
from shardctl.postgres.connection import NodeLost
from shardctl.state import cluster, events, ledger, lock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.maintenance.repack_look import Options, Table, View
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology


COMMAND = repack_look.COMMAND

Verdict = Literal["repack", "refused", "little", "recent", "unknown"]
"""`little` bloat, a `recent` repack and an `unknown` bloat are reasons to leave a table out."""

ROOM = 2
"""How much free disk a table takes while it is repacked, in times its size with all indexes."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table with its verdict; `why_not` is None unless it is refused."""

    node: NodeName
    table: Table
    verdict: Verdict
    why_not: str | None = None

    @property
    def name(self) -> str:
        """The table's name with its schema, for people."""
        return f"{self.table.schema}.{self.table.name}"

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, as planned."""
        table = self.table
        return {
            "node": self.node,
            "shard": table.shard,
            "schema": table.schema,
            "table": table.name,
            "size_bytes": table.size_bytes,
            "bloat_bytes": table.bloat_bytes,
            "index": table.index,
            "state": "planned" if self.why_not is None else "refused",
            "reason": self.why_not,
            "after_bytes": None,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repack does: the chosen tables, worst first, and what was seen of their nodes.

    `programs` are those of this machine, by version.
    """

    candidates: tuple[Candidate, ...]
    views: Mapping[NodeName, View]
    programs: Mapping[str, str]
    options: Options

    @property
    def chosen(self) -> list[Candidate]:
        """The tables to repack, in order."""
        return [one for one in self.candidates if one.verdict == "repack"]

    @property
    def refused(self) -> list[Candidate]:
        """The tables that should be repacked and cannot be."""
        return [one for one in self.candidates if one.verdict == "refused"]

    def left_out(self, verdict: Verdict) -> int:
        """Count the tables of another verdict."""
        return sum(one.verdict == verdict for one in self.candidates)

    @property
    def nodes(self) -> list[NodeName]:
        """The nodes on which there is something to do."""
        busy = {one.node for one in self.chosen}
        return [node for node in self.views if node in busy]


def program_missing(node: NodeName, wanted: str, found: Collection[str]) -> Refused:
    """Report a node's extension with whose version no program here works."""
    seen = f"has {', '.join(sorted(found))}" if found else "has no pg_repack"
    return Refused(
        "program_missing",
        f"node {node}: the pg_repack extension is version {wanted}; this machine {seen}",
        hint="install the package of that version on this machine (postgresql-NN-repack), "
        f"or set ${binaries.VARIABLE} to the directory of its program",
    )


def tables_refused(refused: Sequence[tuple[NodeName, str, str]]) -> Refused:
    """Report tables that cannot be repacked; the rest were."""
    listed = sentences([f"node {node}: {name}: {why}" for node, name, why in refused], most=_SHOWN)
    tables = "table" if len(refused) == 1 else "tables"
    return Refused(
        "tables_refused",
        f"{len(refused)} {tables} cannot be repacked: {listed}",
        hint="fix these tables, or leave out their shards",
    )


def plan(topology: Topology, shards: Iterable[int], options: Options) -> Plan:
    """Look at the shards' tables and judge each; changes nothing.

    Raises what `repack_look.look` raises, and program_missing.
    """
    views = repack_look.look(
        topology,
        frozenset(shards),
        superuser_check=options.superuser_check,
        purpose=lock.purpose(COMMAND),
    )
    found = repack_look.find()
    missing = [
        program_missing(node, view.version, found)
        for node, view in views.items()
        if view.version not in found
    ]
    if missing:
        raise together(missing)
    return Plan(tuple(judge(views, options)), views, found, options)


def judge(views: Mapping[NodeName, View], options: Options) -> list[Candidate]:
    """Give every table its verdict; those with the most estimated bloat come first."""
    found = [
        _judged(node, table, view, options) for node, view in views.items() for table in view.tables
    ]
    return sorted(found, key=lambda one: (-(one.table.bloat_bytes or 0), one.name))


def _judged(node: NodeName, table: Table, view: View, options: Options) -> Candidate:
    if table.done_s is not None and table.done_s < options.recent_s:
        return Candidate(node, table, "recent")
    if table.locked:
        return Candidate(
            node, table, "refused", "another session holds a lock on it, or waits for one"
        )
    if options.min_bloat > 0:
        if table.bloat_bytes is None:
            return Candidate(node, table, "unknown")
        if not table.bloat_bytes or table.bloat_bytes < options.min_bloat * table.size_bytes:
            return Candidate(node, table, "little")
    why = _why_not(table, view)
    return Candidate(node, table, "repack" if why is None else "refused", why)


def _why_not(table: Table, view: View) -> str | None:
    """Explain why pg_repack would refuse a table, or fill the disk; None: it would not."""
    if any(one.oid == table.oid for one in view.leftovers):
        return "a killed pg_repack left a trigger or tables of it, which you have to drop first"
    if not table.permanent:
        return "unlogged tables cannot be repacked"
    if not table.keyed:
        return "it needs a primary key, or a unique index on columns that are NOT NULL"
    need = ROOM * table.size_bytes
    if view.free_bytes is not None and need > view.free_bytes:
        free = size(view.free_bytes)
        return f"repacking it needs {size(need)} of free disk, and the node has {free}"
    return None


_WIDTH = 8
_PRINTED = re.compile(r"(?:ERROR|FATAL|WARNING): +(?:query failed: )?(?:ERROR: +)?(.+)")
_WAITS = re.compile(r"NOTICE: (Waiting for .+)")


def repack_unfinished(left: Mapping[Candidate, str], count: int) -> Incomplete:
    """Report tables that were to be repacked and are as they were."""
    listed = sentences(
        [f"node {one.node}: {one.name}: {why}" for one, why in left.items()], most=_SHOWN
    )
    return Incomplete(
        "repack_unfinished",
        f"{len(left):,} of {count:,} tables were not repacked and are unchanged: {listed}",
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
        plan, topology = self._plan, self._topology
        view, node = plan.views[one.node], topology.nodes[one.node]
        login = repack_look.conninfo(node, topology.database, major=view.major)
        program = plan.programs[view.version]
        argv = repack_look.arguments(program, view.version, login, one.table, plan.options)
        complaint, waiting = "", False
        with repack_look.start(argv) as process:
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
