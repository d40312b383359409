"""Rebalances, each a group of moves, and nodes that are to be empty; every node has all of them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from shardctl.errors import Refused, ShardctlError, together
from shardctl.fanout import collect
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import events, lock, observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, Topology

QUERIES = queries.load("shardctl.state", "rebalances.sql")

_WIDTH = 16


class GroupState(StrEnum):
    """What an operator has decided about a rebalance; whether a command runs it, its lock shows."""

    running = "running"
    paused = "paused"
    done = "done"
    aborted = "aborted"

    @property
    def over(self) -> bool:
        """Whether no more of its moves begin."""
        return self in (GroupState.done, GroupState.aborted)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A rebalance as a node has it.

    `plan` has its moves, by their ids; it is read for those that are open, and for the newest.
    """

    id: str
    revision: int
    state: GroupState
    plan: dict[str, Any]
    who: str
    started: datetime
    changed: datetime

    def __post_init__(self) -> None:
        """Take what psycopg gives for what it is here."""
        object.__setattr__(self, "state", GroupState(self.state))

    @property
    def order(self) -> tuple[bool, int]:
        """The greatest of several copies is the newest."""
        return self.state.over, self.revision

    @property
    def moves(self) -> list[str]:
        """The ids of its moves, in their order."""
        return [one["move"] for one in self.plan.get("moves", ())]

    def shown(self, holder: str | None) -> str:
        """Give the state as people see it; `holder` is the command that carries it out."""
        if self.state is GroupState.running:
            return "running" if holder else "unfinished"
        if self.state is GroupState.paused and holder:
            return "pausing"
        return self.state.value

    def changed_to(self, state: GroupState, plan: dict[str, Any] | None = None) -> GroupRow:
        """Give the next revision."""
        return replace(
            self,
            revision=self.revision + 1,
            state=state,
            plan=self.plan if plan is None else plan,
            changed=datetime.now(UTC),
        )


@dataclass(frozen=True, slots=True)
class Drain:
    """Whether a node is to be empty, and who wanted that."""

    node: str
    revision: int
    is_active: bool
    who: str
    at: datetime

    @property
    def order(self) -> tuple[bool, int]:
        """The greatest of several copies is the newest."""
        return False, self.revision


@dataclass(frozen=True, slots=True)
class Kept:
    """What one node has; `holder` is the command that holds its lock of rebalances.

    `writable` is whether its schema has the tables, and this role may write to them.
    """

    groups: tuple[GroupRow, ...] = ()
    drains: tuple[Drain, ...] = ()
    holder: str | None = None
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What the nodes together know: the newest copy of everything.

    `groups` begin with the newest; `drained` are nodes that are to be empty now.
    """

    groups: tuple[GroupRow, ...]
    drained: dict[str, Drain]
    last: dict[str, Drain]
    holder: str | None
    unread: tuple[ShardctlError, ...] = ()
    old: tuple[NodeName, ...] = ()
    """Nodes without the tables, or without the right to write to them."""

    @property
    def open(self) -> GroupRow | None:
        """The rebalance that is not over."""
        return next((one for one in self.groups if not one.state.over), None)


class _Copied(Protocol):
    @property
    def order(self) -> tuple[bool, int]: ...


Copy = TypeVar("Copy", bound=_Copied)


def kept(session: Connection) -> Kept:
    """Read what one node has; nothing where its schema is older."""
    may_read, may_write = queries.one(session, QUERIES["may"])
    if not may_read:
        return Kept()
    with session.cursor(row_factory=class_row(GroupRow)) as cursor:
        groups = cursor.execute(QUERIES["groups"]).fetchall()
    with session.cursor(row_factory=class_row(Drain)) as cursor:
        drains = cursor.execute(QUERIES["drains"]).fetchall()
    return Kept(tuple(groups), tuple(drains), _holder(session), may_write)


def together_of(
    found: Iterable[Kept], unread: Sequence[ShardctlError] = (), old: Sequence[NodeName] = ()
) -> Known:
    """Put together what several nodes have."""
    every = list(found)
    groups = _newest((one for of_node in every for one in of_node.groups), lambda one: one.id)
    drains = _newest((one for of_node in every for one in of_node.drains), lambda one: one.node)
    return Known(
        tuple(sorted(groups.values(), key=lambda one: one.started, reverse=True)),
        {name: one for name, one in drains.items() if one.is_active},
        drains,
        next((one.holder for one in every if one.holder), None),
        tuple(unread),
        tuple(old),
    )


def read(topology: Topology, *, purpose: str) -> Known:
    """Ask all nodes; raises the errors of all if none answers."""
    asked = observer.ask(topology, lambda session, _: kept(session), purpose=purpose)
    if not asked.values:
        raise together(list(asked.errors.values()))
    old = [name for name, one in asked.values.items() if not one.writable]
    return together_of(asked.values.values(), asked.problems, old)


def of_move(topology: Topology, move: str, *, purpose: str) -> str | None:
    """Give the id of the rebalance that a move belongs to, as the nodes that answer know it."""

    def one(session: Connection, _: Node) -> str | None:
        may_read, _ = queries.one(session, QUERIES["may"])
        found = session.execute(QUERIES["of_move"], {"move": move}).fetchone() if may_read else None
        return None if found is None else str(found[0])

    asked = observer.ask(topology, one, purpose=purpose)
    return next((found for found in asked.values.values() if found), None)


def write(
    topology: Topology,
    record: GroupRow | Drain,
    *,
    command: str,
    result: str,
    away: Callable[[str], None] | None = None,
) -> None:
    """Write a group or a drain to every node that has the tables, with an event on each.

    A node without shards may be away. `away` gets the message of every other node that cannot be
    written to; without it, or if there is no other, this raises NodeUnavailable or format_too_old.
    """

    def one(node: Node) -> None:
        purpose = lock.purpose(command)
        with connect(node, topology.database, purpose=purpose) as session:
            if queries.one(session, QUERIES["may"]) != (True, True):
                if node.shards:
                    raise too_old(node.name)
                return
            given = {name: getattr(record, name) for name in type(record).__dataclass_fields__}
            if isinstance(record, GroupRow):
                given |= {"state": record.state.value, "plan": Jsonb(record.plan)}
            query = "write_group" if isinstance(record, GroupRow) else "write_drain"
            session.execute(QUERIES[query], given)
            events.record(session, command, result)

    written = collect(topology.nodes.values(), one, width=_WIDTH)
    missed = [
        (node, error)
        for node, error in written.problems
        if node.shards or not isinstance(error, NodeUnavailable)
    ]
    if missed and (away is None or not written.values):
        raise together([error for _, error in missed])
    if away is not None:
        for _, error in missed:
            away(error.message)


@contextmanager
def held(
    topology: Topology, nodes: Iterable[NodeName], *, command: str
) -> Iterator[dict[NodeName, Connection]]:
    """Hold the lock of rebalances on nodes, so that one command carries them out.

    Raises NodeLocked and NodeUnavailable.
    """
    with ExitStack() as stack:
        sessions: dict[NodeName, Connection] = {}
        for name in nodes:
            node, purpose = topology.nodes[name], lock.purpose(command)
            session = connect(node, topology.database, purpose=purpose, autocommit=True)
            stack.callback(lock.release, session)
            if queries.one(session, QUERIES["try_lock"], {"class": lock.CLASS}) != (True,):
                row = session.execute(QUERIES["holder"], {"class": lock.CLASS}).fetchone()
                holder, since = row or ("another rebalance", None)
                raise lock.NodeLocked(name, holder, since)
            sessions[name] = session
        yield sessions


def too_old(node: str) -> Refused:
    """Report a node that cannot keep a rebalance."""
    return Refused(
        "format_too_old",
        f"node {node}: schema shardctl has no tables for rebalances, or this role may not write "
        "to them",
        hint="run `shardctl init`, which upgrades it",
    )


def _holder(session: Connection) -> str | None:
    row = session.execute(QUERIES["holder"], {"class": lock.CLASS}).fetchone()
    return None if row is None else str(row[0])


def _newest(found: Iterable[Copy], key: Callable[[Copy], str]) -> dict[str, Copy]:
    newest: dict[str, Copy] = {}
    for one in found:
        if key(one) not in newest or newest[key(one)].order < one.order:
            newest[key(one)] = one
    return newest
