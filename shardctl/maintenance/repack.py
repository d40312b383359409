"""Repack: which tables are written again, in which order, and one call of pg_repack for each.

pg_repack runs on this machine, and logs in as shardctl itself does: no row travels through it, so
the network does not matter, and hosts need neither a route there nor a password of their own. It
can stop anywhere: pg_repack swaps a table in one transaction.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Incomplete, Interrupted, Refused, ShardctlError, together
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.libpq import reason_of
from shardctl.maintenance import places
from shardctl.meter import BYTES, sentences, size
from shardctl.postgres import binaries, catalog, connection, queries
from shardctl.postgres.connection import NodeLost
from shardctl.state import events, ledger, lock, observer
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardctl.fanout import Progress
    from shardctl.maintenance.places import Place
    from shardctl.postgres.catalog import Leftover
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology

QUERIES = queries.load("shardctl.maintenance", "repack.sql")
COMMAND = "repack"
MARK = "repacked file "
"""How the event of a repacked table begins; the number of its file and a colon come next."""

Verdict = Literal["repack", "refused", "little", "recent", "unknown"]
"""`little` bloat, a `recent` repack and an `unknown` bloat are reasons to leave a table out."""

ROOM = 2
"""How much free disk a table takes while it is repacked, in times its size with all indexes."""

_SHOWN = 3
_LOCK_TIMEOUT = "1s"
_PROGRAM = "pg_repack"
_SETTINGS = {
    # A role's own limits would end sessions that wait on purpose.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # It tries for its own locks for a second at a time, but cleans up after itself without any
    # limit, while all other users of the table wait behind it.
    "lock_timeout": "2s",
    # What a killed program leaves running would hold its locks until the statement has ended.
    "client_connection_check_interval": "1s",
}
_PRINTED = re.compile(r"(?:ERROR|FATAL|WARNING): +(?:query failed: )?(?:ERROR: +)?(.+)")
_WAITS = re.compile(r"NOTICE: (Waiting for .+)")


@dataclass(frozen=True, slots=True)
class Options:
    """What is chosen, and how it is done; `min_bloat` is a share from 0 to 1.

    A table that was repacked less than `recent_s` ago is left out. `jobs` are tables at a time
    on each node. A table that is in use for `wait_timeout_s` is given up or, to `terminate`, the
    sessions that use it are ended.
    """

    min_bloat: float
    recent_s: float
    jobs: int
    wait_timeout_s: int
    terminate: bool
    superuser_check: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a shard; `bloat_bytes` is None where ANALYZE has not seen it, or it is locked.

    `index` is the one in whose order it is written again, and `order_by` its columns unless
    the table is clustered by it. `file` is where it is stored, and another one as soon as it
    is written again. `done_s` is how long ago it was repacked, None where it was
    not, or was rewritten by another session since. `why_not` is None unless it is refused.
    """

    node: NodeName
    shard: ShardId
    schema: str
    name: str
    oid: int
    file: int
    size_bytes: int
    bloat_bytes: int | None
    index: str | None
    order_by: str | None
    done_s: float | None
    verdict: Verdict = "repack"
    why_not: str | None = None

    @property
    def full_name(self) -> str:
        """Its name with its schema, for people."""
        return f"{self.schema}.{self.name}"

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, as planned."""
        return {
            "node": self.node,
            "shard": self.shard,
            "schema": self.schema,
            "table": self.name,
            "size_bytes": self.size_bytes,
            "bloat_bytes": self.bloat_bytes,
            "index": self.index,
            "state": "planned" if self.why_not is None else "refused",
            "reason": self.why_not,
            "after_bytes": None,
        }


@dataclass(frozen=True, slots=True)
class View:
    """One node; `free_bytes` is None where the room of its data directory is `unknown`, and why."""

    tables: tuple[Table, ...]
    leftovers: tuple[Leftover, ...]
    version: int
    """Of its server, as libpq has it, such as 150012."""
    program: str
    free_bytes: int | None
    unknown: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repack does: the tables, worst first, and what was seen of their nodes."""

    tables: tuple[Table, ...]
    views: Mapping[NodeName, View]
    options: Options

    def of(self, *verdicts: Verdict) -> list[Table]:
        """List the tables with one of these verdicts, in order."""
        return [one for one in self.tables if one.verdict in verdicts]

    @property
    def shown(self) -> list[Table]:
        """The tables that should be repacked, also those that cannot be."""
        return self.of("repack", "refused")

    @property
    def notes(self) -> list[tuple[NodeName, str]]:
        """The nodes whose room is unknown, and why."""
        return [
            (node, f"free disk space could not be checked: {view.unknown}")
            for node, view in self.views.items()
            if view.unknown is not None
        ]

    @property
    def nodes(self) -> list[NodeName]:
        """The nodes on which there is something to do."""
        return list(dict.fromkeys(one.node for one in self.of("repack")))


def plan(topology: Topology, shards: Iterable[int], options: Options) -> Plan:
    """Look at the shards' tables on their owners and judge each; changes nothing.

    Raises what `places.of_shards` raises, the errors of nodes that could not be asked,
    move_unfinished, extension_missing and program_missing, or Problems of several.
    """
    of_node = _places(topology, shards)
    nodes = [topology.nodes[name] for name in of_node]

    def view(session: Connection, node: Node) -> View:
        return _view(session, node, of_node[node.name])

    purpose = lock.purpose(COMMAND)
    views = observer.ask(topology, view, purpose=purpose, nodes=nodes).every()
    return Plan(tuple(judge(views, options)), views, options)


def _places(topology: Topology, shards: Iterable[int]) -> dict[NodeName, list[Place]]:
    """Find the shards' owners, and see that none is part of an unfinished move."""
    fleet = places.look(topology, purpose=lock.purpose(COMMAND))
    found = places.of_shards(fleet, map(ShardId, shards))
    why = ": a repack would run through to its copy, and delay the cutover"
    problems = list(dict.fromkeys(error for _, error in found.left_out))
    problems += [
        ledger.in_the_way(one, why)
        for one in fleet.open_moves()
        if not {one.move.source, one.move.target}.isdisjoint(found.nodes)
    ]
    if problems:
        raise together(problems)
    return found.by_node()


def _view(session: Connection, node: Node, of_node: Iterable[Place]) -> View:
    session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
    try:
        session.execute("SELECT repack.version()")
    except psycopg.Error as error:
        raise Refused(
            "extension_missing",
            f"node {node.name}: the extension pg_repack cannot be used: {reason_of(error)}",
            hint="install its package on that node's host (postgresql-NN-repack), then run `CREATE "
            "EXTENSION pg_repack` in the cluster's database, as a superuser",
        ) from error
    shards = {place.schema: place.shard for place in of_node}
    given = {"schemas": list(shards), "command": COMMAND, "mark": MARK}
    tables = [
        Table(node.name, shards[schema], schema, *rest)  # type: ignore[arg-type]  # it is a shard's
        for schema, *rest in session.execute(QUERIES["tables"], given)
    ]
    version = session.info.server_version
    leftovers, program = catalog.repack_leftovers(session), _program(version // 10_000)
    return View(tuple(tables), leftovers, version, program, *_room(session, node))


def _room(session: Connection, node: Node) -> tuple[int | None, str | None]:
    """Ask for the room of the data directory; None with the reason where it is unknown."""
    # The server shows it to superusers.
    (reported,) = queries.one(session, "SELECT current_setting('data_directory', true)")
    directory = reported or node.data_directory
    if directory is None:
        return None, "data_directory is not in the topology"
    try:
        return files.disk(host_of(node), directory)[1], None
    except ShardctlError as error:
        return None, error.message


def _program(major: int) -> str:
    """Find the program: in `$SHARDCTL_PG_BIN`, beside PostgreSQL's of that version, in PATH."""
    beside = binaries.of_major(major)
    directories = [os.environ.get(binaries.VARIABLE), str(beside.directory) if beside else ""]
    for directory in (*filter(None, directories), None):
        if path := shutil.which(_PROGRAM, path=directory):
            return path
    raise Refused(
        "program_missing",
        "this machine has no pg_repack",
        hint="install the package of the nodes' version on this machine (postgresql-NN-repack), "
        f"or set ${binaries.VARIABLE} to the directory of its program",
    )


def judge(views: Mapping[NodeName, View], options: Options) -> list[Table]:
    """Give every table its verdict; those with the most estimated bloat come first."""
    found = [_judged(table, view, options) for view in views.values() for table in view.tables]
    return sorted(found, key=lambda one: (-(one.bloat_bytes or 0), one.full_name))


def _judged(table: Table, view: View, options: Options) -> Table:
    if table.done_s is not None and table.done_s < options.recent_s:
        return replace(table, verdict="recent")
    # A session has the table locked where its size is unknown, too.
    if table.bloat_bytes is None and (options.min_bloat > 0 or not table.size_bytes):
        return replace(table, verdict="unknown")
    least = options.min_bloat * table.size_bytes
    if options.min_bloat > 0 and (not table.bloat_bytes or table.bloat_bytes < least):
        return replace(table, verdict="little")
    need, free = ROOM * table.size_bytes, view.free_bytes
    if free is not None and need > free:
        why = f"repacking it needs {size(need)} of free disk, and the node has {size(free)}"
        return replace(table, verdict="refused", why_not=why)
    return table


def tables_refused(refused: Iterable[Table]) -> Refused:
    """Report tables that cannot be repacked; the rest were."""
    listed = [f"node {one.node}: {one.full_name}: {one.why_not}" for one in refused]
    return Refused(
        "tables_refused",
        f"tables that cannot be repacked: {len(listed)}: {sentences(listed, most=_SHOWN)}",
        hint="free disk space, or leave out their shards",
    )


@dataclass(slots=True)
class Repack:
    """A repack and what came of it; `error` None is that nothing is left to do.

    `after` has the bytes of tables that were written again, with indexes and TOAST. `left` are
    tables that were begun, or were to be, and are as they were, with the reason.
    """

    topology: Topology
    plan: Plan
    progress: Progress
    notice: Callable[[str], None]
    after: dict[Table, int] = field(default_factory=dict)
    left: dict[Table, str] = field(default_factory=dict)
    error: ShardctlError | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _running: set[subprocess.Popen[str]] = field(default_factory=set)

    @property
    def freed_bytes(self) -> int:
        """How many bytes the tables take less."""
        return sum(one.size_bytes - after for one, after in self.after.items())

    def carry_out(self) -> Repack:
        """Repack the chosen tables, on all nodes at once; `notice` gets what pg_repack waits for.

        Raises NodeLocked, NodeUnavailable and move_unfinished with nothing done.
        """
        chosen = self.plan.of("repack")
        errors: list[ShardctlError] = []
        with lock.held(self.topology, self.plan.nodes, command=COMMAND) as locks:
            _places(self.topology, [one.shard for one in chosen])  # now no move can begin
            try:
                for outcome in fanout.run(
                    locks.items(), self._node, stop=self._stop, cancel=self._cancel
                ):
                    if isinstance(outcome.error, psycopg.Error):
                        errors.append(NodeLost(outcome.item[0], reason_of(outcome.error)))
                    else:
                        outcome.result()
            except KeyboardInterrupt:
                self.error = Interrupted(
                    f"interrupted: {len(self.after):,} of {len(chosen):,} tables are repacked, the "
                    "rest are unchanged",
                    hint="run the same command again: it repacks only the rest",
                )
                return self
        if self.left:
            left = [f"node {one.node}: {one.full_name}: {why}" for one, why in self.left.items()]
            errors.append(
                Incomplete(
                    "repack_unfinished",
                    f"{len(left):,} of {len(chosen):,} tables were not repacked and are unchanged: "
                    + sentences(left, most=_SHOWN),
                    hint="fix the causes, then run the same command again: it repacks only these "
                    "tables",
                )
            )
        self.error = together(errors) if errors else None
        return self

    def _cancel(self) -> None:
        """Let every pg_repack clean up and end."""
        while self._running:
            self._running.pop().send_signal(signal.SIGINT)

    def _node(self, locked: tuple[NodeName, Connection]) -> None:
        """Repack a node's tables; raises psycopg.Error when its session is lost."""
        name, session = locked
        chosen = [one for one in self.plan.of("repack") if one.node == name]
        self.progress.expect(name, "repacking", sum(one.size_bytes for one in chosen), BYTES)
        table = partial(self._table, session)
        for outcome in fanout.run(chosen, table, width=self.plan.options.jobs, stop=self._stop):
            outcome.result()
        count = sum(one.node == name for one in self.after)
        done = "done" if count == len(chosen) else "unfinished"
        events.record(session, COMMAND, f"{done}: {count} of {len(chosen)} tables")

    def _table(self, session: Connection, one: Table) -> None:
        """Repack one table; whatever keeps it from that is written down in `left`."""
        said = self._call(one)
        # With the lock's session: it is held as yet.
        row = session.execute(QUERIES["measure"], {"table": one.oid}).fetchone()
        if row is None or row[0] == one.file:
            self.left[one] = "stopped" if self._stop.is_set() else said
        else:
            file, after = row
            given = f"{one.size_bytes} -> {after} bytes"
            events.record(session, COMMAND, f"{MARK}{file}: {one.full_name}, {given}")
            self.after[one] = after
        self.progress.advance(one.node, one.size_bytes)

    def _call(self, one: Table) -> str:
        """Call pg_repack; give the first that it had to complain about."""
        complaint = ""
        # Its exit code shows little: it is 0 even where it gave up a table.
        with subprocess.Popen(
            self._arguments(one),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C at the terminal reaches shardctl alone
        ) as process:
            self._running.add(process)
            for line in process.stdout or ():
                if printed := _PRINTED.match(line):
                    complaint = complaint or printed[1]
                elif waits := _WAITS.search(line):
                    self.notice(f"node {one.node}: {one.full_name}: pg_repack: {waits[1]}")
        self._running.discard(process)
        return complaint or f"pg_repack ended with code {process.returncode} and no message"

    def _arguments(self, one: Table) -> list[str]:
        options, view = self.plan.options, self.plan.views[one.node]
        node, database = self.topology.nodes[one.node], self.topology.database
        # Other runs of pg_repack know by its application_name that they need not wait for it.
        settings = _SETTINGS
        if view.version >= connection.WITH_TRANSACTION_TIMEOUT:
            settings = settings | {"transaction_timeout": "0"}
        login = connection.whole(node, database, _PROGRAM, settings, dbname=database.name)
        name = sql.Identifier(one.schema, one.name).as_string()
        argv = [view.program, "--no-password", f"--dbname={login}", f"--table={name}"]
        argv += [f"--wait-timeout={options.wait_timeout_s}"]
        argv += [f"--order-by={one.order_by}"] if one.order_by is not None else []
        argv += [] if options.terminate else ["--no-kill-backend"]
        return argv + ([] if options.superuser_check else ["--no-superuser-check"])
