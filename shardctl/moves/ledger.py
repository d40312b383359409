"""All moves of a cluster, from every node's journal."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import psycopg

from shardctl import fanout
from shardctl.errors import ShardctlError, UsageError, together
from shardctl.ids import times
from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import cluster, journal, lock
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from shardctl.state.journal import Move, StepRecord
    from shardctl.topology.model import Node, NodeName, Topology

Shown = Literal["running", "unfinished", "unconfirmed", "done", "aborted"]

_OVER: dict[MoveState, Shown] = {
    MoveState.unconfirmed: "unconfirmed",
    MoveState.done: "done",
    MoveState.aborted: "aborted",
}
_WIDTH = 16
_FORMAT_WITH_MOVES = 2


class MoveNotFound(UsageError):
    """An id that no node's journal has."""

    def __init__(self, move: str, known: Sequence[str]) -> None:
        super().__init__(
            f"no node knows a move {move}",
            hint=f"its journal has: {', '.join(known)}" if known else "there was no move yet",
        )


class NoMoveYet(UsageError):
    """A cluster in whose journal there is nothing to show."""

    def __init__(self) -> None:
        super().__init__(
            "there was no move yet", hint="`shardctl move-shards` begins one (see its --help)"
        )


class NothingUnfinished(UsageError):
    """No move that could be resumed or aborted."""

    def __init__(self) -> None:
        super().__init__("no move is unfinished", hint="`shardctl moves list` shows them all")


class MoveEnded(ShardctlError):
    """A move with which nobody can go on, and which nobody can call off."""

    def __init__(self, move: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: it has ended", hint="`shardctl moves list` shows all moves"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One move as the cluster knows it: the newest copy, its steps, who is at it."""

    move: Move
    steps: tuple[StepRecord, ...]
    holder: str | None
    """Who holds the source's or the target's lock at this moment."""
    behind: bool = False
    """Whether it is over, and source or target do not know that yet."""

    @property
    def state(self) -> Shown:
        """The state as people are told it."""
        if self.behind or self.move.state not in _OVER:
            return "running" if self.holder else "unfinished"
        return _OVER[self.move.state]

    def require_open(self) -> None:
        """See that it can be gone on with or called off; raises MoveEnded."""
        if self.state not in ("running", "unfinished"):
            raise MoveEnded(self.move.id, self.state)

    def can(self) -> list[str]:
        """Name what an operator can do about it."""
        if self.state == "unfinished":
            return ["resume", "abort"] if self.move.state.undoable else ["resume"]
        return ["prune"] if self.state == "unconfirmed" else []

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, without steps and report."""
        move = self.move
        last = self.steps[-1].step if self.steps else None
        return {
            "id": move.id,
            "state": self.state,
            "method": move.method,
            "source": move.source,
            "target": move.target,
            "shards": list(move.shards),
            "step": last if last != "cutover" else f"cutover.{move.state.value}",
            "by": move.who,
            "started": _time(move.started),
            "ended": _time(move.ended),
            "can": self.can(),
        }

    def details(self) -> dict[str, Any]:
        """Give what `moves show` tells beside that."""
        return {"steps": list(self._steps()), "report": self.move.report}

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Give the steps, and behind the cutover what it was made of: one after the other."""
        for one in self.steps:
            yield {
                "name": one.step,
                "state": one.state,
                "started": _time(one.started),
                "elapsed_ms": None if one.took_ms is None else round(one.took_ms, 1),
                "error": one.error,
            }
            began = one.started
            spans = (self.move.report or {}).get("timeline", []) if one.step == "cutover" else []
            for name, took_ms in spans:
                yield {
                    "name": f"cutover.{name.replace(' ', '_')}",
                    "state": "done",
                    "started": _time(began),
                    "elapsed_ms": took_ms,
                    "error": None,
                }
                began += timedelta(milliseconds=took_ms)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the journals say, newest first; `unread` are nodes that could not be asked."""

    entries: tuple[Entry, ...]
    unread: tuple[tuple[NodeName, str], ...]

    def entry(self, move: str | None) -> Entry:
        """Give one move; None stands for the one that is unfinished.

        Raises MoveNotFound, NothingUnfinished.
        """
        if move is None:
            open_ones = [e for e in self.entries if e.state in ("running", "unfinished")]
            if not open_ones:
                raise NothingUnfinished
            return open_ones[0]
        for entry in self.entries:
            if entry.move.id == move:
                return entry
        raise MoveNotFound(move, [entry.move.id for entry in self.entries])

    def newest(self) -> Entry:
        """Give the move that began last; raises NoMoveYet."""
        if not self.entries:
            raise NoMoveYet
        return self.entries[0]


def read(topology: Topology, *, purpose: str) -> Ledger:
    """Read the journals of all nodes that are there; raises NodeUnavailable when none is."""
    copies: dict[str, list[_Copy]] = defaultdict(list)
    unread: list[tuple[NodeName, str]] = []
    answered = False
    outcomes = fanout.run(
        topology.nodes.values(), lambda node: _read(topology, node, purpose), width=_WIDTH
    )
    for outcome in outcomes:
        node, error = outcome.item, outcome.error
        if error is None:
            answered = True
            for copy in outcome.result():
                copies[copy.move.id].append(copy)
        elif isinstance(error, NodeUnavailable) and not node.shards:
            continue  # it waits to be cloned onto
        elif isinstance(error, NodeUnavailable):
            unread.append((node.name, error.reason))
        elif isinstance(error, psycopg.Error):
            unread.append((node.name, reason_of(error)))
        elif isinstance(error, ShardctlError):
            unread.append((node.name, error.message))
        else:
            raise error
    if unread and not answered:
        addresses = {n.name: f"{n.host}:{n.port}" for n in topology.nodes.values()}
        raise together([NodeUnavailable(n, addresses[n], reason) for n, reason in unread])
    entries = sorted(
        (_entry(found) for found in copies.values()), key=lambda e: e.move.started, reverse=True
    )
    return Ledger(tuple(entries), tuple(unread))


@dataclass(frozen=True, slots=True)
class _Copy:
    """What one node knows of one move, and who holds that node's lock."""

    node: NodeName
    move: Move
    steps: tuple[StepRecord, ...]
    holder: str | None

    @property
    def last(self) -> datetime:
        """When its last step began."""
        return max((one.started for one in self.steps), default=self.move.started)


def _read(topology: Topology, node: Node, purpose: str) -> list[_Copy]:
    with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
        if not cluster.is_present(session):
            return []
        row = cluster.read(session)
        if row is None or row.format < _FORMAT_WITH_MOVES or row.cluster != topology.cluster:
            return []
        holder = lock.holder(session)
        return [
            _Copy(node.name, move, tuple(journal.steps(session, move.id)), holder)
            for move in journal.read(session)
        ]


def _entry(copies: Sequence[_Copy]) -> Entry:
    newest = journal.newest(copy.move for copy in copies)
    if newest is None:  # pragma: no cover  # there is at least one copy
        raise AssertionError
    steps = max(copies, key=lambda copy: copy.last).steps
    holder = next((copy.holder for copy in copies if copy.holder), None)
    behind = newest.state in (MoveState.done, MoveState.unconfirmed) and any(
        copy.node in (newest.source, newest.target) and copy.move.state not in _OVER
        for copy in copies
    )
    return Entry(newest, steps, holder, behind)


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else times.render(int(moment.timestamp() * 1000))
