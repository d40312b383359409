"""`rows move`: plan and carry out the move of misplaced rows, under the nodes' locks."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.access import read_only
from shardctl.errors import Interrupted, ShardctlError, together
from shardctl.libpq import reason_of
from shardctl.maintenance import misplaced, places, row_copy
from shardctl.maintenance.misplaced import table_unread
from shardctl.maintenance.row_copy import COMMAND, Copying, Pair
from shardctl.maintenance.row_refusals import (
    Outcome,
    rows_left,
    shards_refuse_writes,
    table_unmovable,
)
from shardctl.postgres import catalog, event_triggers
from shardctl.postgres.connection import NodeLost, connect, is_lost
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shardctl.fanout import Progress
    from shardctl.maintenance.misplaced import Misplaced
    from shardctl.maintenance.row_copy import Column
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, ShardId, Topology


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rows would be moved, and where from and to."""

    topology: Topology
    pairs: tuple[Pair, ...]

    @property
    def nodes(self) -> list[NodeName]:
        """List the nodes that rows leave or reach, in the topology's order."""
        concerned = {node for pair in self.pairs for node in (pair.table.node, pair.node)}
        return [name for name in self.topology.nodes if name in concerned]

    @property
    def rows(self) -> int:
        """How many rows were counted."""
        return sum(pair.rows for pair in self.pairs)

    def as_json(self) -> list[dict[str, Any]]:
        """Give the shape of docs/reference/json.md."""
        return [
            {
                "table": pair.table.name,
                "source": pair.table.node,
                "source_shard": pair.table.shard,
                "target": pair.node,
                "target_shard": pair.belongs_to,
                "rows": pair.rows,
                "by": "id" if pair.table.by_id else "key",
            }
            for pair in self.pairs
        ]


def plan(topology: Topology, shards: Collection[ShardId], names: Collection[str]) -> Plan:
    """Search for misplaced rows and see that they can be moved; changes nothing.

    Raises move_unfinished, shards_refuse_writes, table_unmovable, EventTriggerRefuses, what
    `misplaced.search` raises and cannot read, or Problems of several.
    """
    fleet = places.look(topology, purpose=lock.purpose(COMMAND))
    fleet.require_settled()
    report = misplaced.search(topology, shards, names, limit=1)
    problems = list(report.problems)
    pairs: list[Pair] = []
    with ExitStack() as stack:
        look = _Look(topology, stack)
        for one in report.found:
            try:
                pairs.append(look.pair(one))
            except ShardctlError as error:
                problems.append(error)
            except psycopg.Error as error:
                problems.append(table_unread(one.table, reason_of(error)))
        problems += [shards_refuse_writes(n, shards) for n, shards in look.refusing.items()]
    if problems:
        raise together(problems)
    return Plan(topology, tuple(pairs))


class _Look:
    """Looks at the tables that rows would leave and reach, over one session a node."""

    def __init__(self, topology: Topology, stack: ExitStack) -> None:
        self._topology = topology
        self._stack = stack
        self._owners = topology.owners()
        self._sessions: dict[NodeName, Connection] = {}
        self.refusing: dict[NodeName, set[ShardId]] = {}
        """The shards, of pairs that were looked at, that refuse writes."""

    def pair(self, one: Misplaced) -> Pair:
        """See that rows can be moved; raises table_unmovable, NodeUnavailable."""
        table, node = one.table, self._owners[one.belongs_to]
        schema = self._topology.schema(one.belongs_to)
        source, target = self._session(table.node), self._session(node)
        for session, shard in ((source, table.shard), (target, one.belongs_to)):
            if read_only.marks(session, [self._topology.schema(shard)]):
                self.refusing.setdefault(self._owners[shard], set()).add(shard)
        columns = row_copy.read_columns(source, table.schema, table.name)
        there = row_copy.read_columns(target, schema, table.name)
        wrong = row_copy.obstacles(source, table.schema, table.name, source=True)
        if not table.primary_key:
            wrong.append("it has no primary key, so its rows cannot be identified")
        if wrong:
            raise table_unmovable(table.node, table.shard, table.name, wrong)
        wrong = row_copy.obstacles(target, schema, table.name, source=False)
        if there != columns:
            wrong.append(_differing(columns, there, table.shard))
        parents = catalog.read_ancestors(target, [schema]).get((schema, table.name), ())
        if there and parents != table.parents:
            wrong.append(
                f"its parents on that shard are {', '.join(parents) or 'missing'}; in "
                f"shard {table.shard} they are {', '.join(table.parents) or 'missing'}"
            )
        if wrong:
            raise table_unmovable(node, one.belongs_to, table.name, wrong)
        belongs = table.belongs(self._topology)
        return Pair(table, one.belongs_to, node, schema, one.rows, columns, belongs)

    def _session(self, node: NodeName) -> Connection:
        if node not in self._sessions:
            session = connect(
                self._topology.nodes[node],
                self._topology.database,
                purpose=lock.purpose(COMMAND),
                autocommit=True,
                observing=True,
            )
            self._sessions[node] = self._stack.enter_context(session)
            session.execute("SET default_transaction_read_only TO on")
            event_triggers.rehearse(session, node, "rows_move")
        return self._sessions[node]


def _differing(columns: Sequence[Column], there: Sequence[Column], shard: ShardId) -> str:
    if not there:
        return "the table is missing"
    names = sorted({column.name for column in set(columns) ^ set(there)})
    return f"columns {', '.join(names)} differ from shard {shard}"


def carry_out(planned: Plan, progress: Progress) -> int:
    """Move the planned rows under the nodes' locks; give how many were moved.

    What is to be moved is looked at again under the locks, and only tables and shards that were
    planned are touched. Raises NodeLocked and what `plan` raises with nothing done; rows_left,
    NodeLost and the like, or Problems of several, when the other rows are moved; Interrupted.
    """
    topology = planned.topology
    moved, errors = 0, list[ShardctlError]()
    with lock.held(topology, planned.nodes, command=COMMAND), ExitStack() as stack:
        wanted = {(pair.table, pair.belongs_to, pair.node) for pair in planned.pairs}
        names = {pair.table.name for pair in planned.pairs}
        now = plan(topology, {pair.table.shard for pair in planned.pairs}, names)
        chosen = [p for p in now.pairs if (p.table, p.belongs_to, p.node) in wanted]
        progress.expect("rows", "moving", sum(pair.rows for pair in chosen), "rows")
        done: list[tuple[Pair, Outcome]] = []
        try:
            sessions = _Sessions(topology, stack)
            for _, of_table in groupby(chosen, key=lambda pair: pair.table):
                errors += _table(sessions, list(of_table), done, progress)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                "interrupted: every row is in its old shard, its right shard, or both",
                hint="run `shardctl rows move` again: it moves the rest and deletes the "
                "originals of copied rows",
            ) from interrupt
        moved = sum(outcome.moved for _, outcome in done)
        for error in errors:
            error.exit_code = 3 if moved else error.exit_code
        errors += [
            rows_left(
                pair.table,
                pair.belongs_to,
                outcome,
                moved=moved > 0,
            )
            for pair, outcome in done
            if outcome.left
        ]
    if errors:
        raise together(errors)
    return moved


class _Sessions:
    """Pinned sessions, one a node for rows that leave and one for rows that arrive."""

    def __init__(self, topology: Topology, stack: ExitStack) -> None:
        self._topology = topology
        self._stack = stack
        self._open: dict[tuple[NodeName, bool], Connection] = {}

    def of(self, node: NodeName, *, source: bool) -> Connection:
        """Give the node's session, a new one where it broke; raises NodeUnavailable."""
        session = self._open.get((node, source))
        if session is None or session.closed:
            topology = self._topology
            purpose = lock.purpose(COMMAND)
            session = connect(topology.nodes[node], topology.database, purpose=purpose)
            self._open[node, source] = session
            self._stack.enter_context(closing(session))
            row_copy.pin(session)
            if not source:
                row_copy.make_journal(session)
        return session


def _table(
    sessions: _Sessions,
    pairs: Sequence[Pair],
    done: list[tuple[Pair, Outcome]],
    progress: Progress,
) -> list[ShardctlError]:
    """Move the rows of one shard's table, shard by shard; gives what failed."""
    table = pairs[0].table
    at = table.node
    try:
        source = sessions.of(table.node, source=True)
        row_copy.listed(source, pairs[0])
        for pair in pairs:
            at = pair.node
            target = sessions.of(pair.node, source=False)
            copying = Copying(source, target, pair)
            done.append((pair, copying.outcome))
            try:
                copying.run()
            finally:
                at = pair.node if target.closed else table.node
                for session in (source, target):
                    if not session.closed:
                        session.rollback()
            progress.advance("rows", pair.rows)
    except psycopg.Error as error:
        if is_lost(error):
            return [NodeLost(at, reason_of(error))]
        return [table_unread(table, reason_of(error))]
    except ShardctlError as error:
        return [error]
    return []
