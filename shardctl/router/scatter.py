"""The plan of a question to every shard: begun on all nodes, merged as rows come."""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import errors

from shardctl.router import fence, statements
from shardctl.router.errors import DeadlinePassed, NoConnection
from shardctl.router.merging import Merging, sort_key
from shardctl.router.plans import parts
from shardctl.router.requests import Answer, Execute, Hold, On, Release, Rows, Together
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.router.known import Known
    from shardctl.router.requests import Plan, Row
    from shardctl.router.statements import Gathering
    from shardctl.topology.model import NodeName

CHUNK = 1000
"""Rows that are fetched from a node at a time, and kept; a smaller answer is fetched whole."""

_DECLARE = b"DECLARE shardctl_scatter NO SCROLL CURSOR FOR "
_FETCH = b"FETCH FORWARD %d FROM shardctl_scatter" % CHUNK
_AWAY = (psycopg.OperationalError, NoConnection, TimeoutError)
"""What partial results do without."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """One question to every shard; `missing` fills where partial results are wanted."""

    known: Known
    asked: Gathering
    parameters: Mapping[str, Any]
    width: int
    deadline: float | None
    """On `time.monotonic`."""
    partial: bool
    missing: dict[ShardId, str] = field(default_factory=dict)
    """Shards of which rows are missing, and why."""

    def plan(self) -> Plan[None]:
        """Ask, and hand out rows; raises DeadlinePassed, NoConnection and psycopg's errors."""
        asking = [
            (number, node, part)
            for node, shards in self.known.by_node(_every(self.known)).items()
            for number, part in enumerate(parts(shards))
        ]
        asking.sort(key=operator.itemgetter(0))  # all nodes have work from the first on
        if self.asked.order or self._is_small:
            yield from self._wave(asking, self.asked.limit)
            return
        # In no order, those that come later need no connection yet.
        left = self.asked.limit
        for first in range(0, len(asking), self.width):
            handed = yield from self._wave(asking[first : first + self.width], left)
            left = None if left is None else left - handed
            if left == 0:
                return

    def _wave(
        self, asking: Sequence[tuple[int, NodeName, Sequence[ShardId]]], limit: int | None
    ) -> Plan[int]:
        """Ask for some shards, and hand out rows in order; the result is how many."""
        begun = yield from self._together(
            [self._begin(node, part, again=True) for _, node, part in asking],
            [part for _, _, part in asking],
        )
        streams = [stream for found in begun if found is not None for stream in found]
        key = sort_key(self.asked, streams[0].types) if self.asked.order and streams else None
        merging = Merging(len(streams), key, limit)
        for number, stream in enumerate(streams):
            merging.feed(number, stream.rows, over=stream.over)
        width, handed = len(self.asked.fields), 0
        while True:
            if rows := [row[:width] for row in merging.ready()]:
                handed += len(rows)
                yield Rows(rows)
            if not (wanting := merging.wanting()):
                return handed
            answers = yield from self._together(
                [self._more(streams[number]) for number in wanting],
                [streams[number].shards for number in wanting],
            )
            for number, answer in zip(wanting, answers, strict=True):
                more: Sequence[Row] = [] if answer is None else answer.rows
                merging.feed(number, more, over=len(more) < CHUNK)

    def _together(
        self, plans: Sequence[Plan[Any]], shards: Sequence[Sequence[ShardId]]
    ) -> Plan[list[Any]]:
        """Run plans side by side; where one fails, its result is None, or the error is raised."""
        outcomes = yield Together(plans, self.width, self.deadline)
        late = [
            shard
            for outcome, part in zip(outcomes, shards, strict=True)
            if self._is_late(outcome)
            for shard in part
        ]
        if late and not self.partial:
            raise DeadlinePassed(late)
        results = []
        for outcome, part in zip(outcomes, shards, strict=True):
            if not isinstance(outcome, BaseException):
                results.append(outcome)
                continue
            if not self.partial or not isinstance(outcome, _AWAY):
                raise outcome
            why = "no answer in time" if self._is_late(outcome) else str(outcome)
            self.missing.update(dict.fromkeys(part, why))
            results.append(None)
        return results

    def _begin(
        self, node: NodeName, shards: Sequence[ShardId], *, again: bool
    ) -> Plan[list[_Stream]]:
        """Ask one node; the result is a stream, or several where shards have moved."""
        statement = statements.gather([self.known.schemas[s] for s in shards], self.asked)
        try:
            return [(yield from self._open(node, shards, statement))]
        except fence.ERRORS:
            if not again or not (yield from fence.moved(self.known, node, shards)):
                raise
        self.known.count_repeated()
        streams = []
        for owner, part in self.known.by_node(shards).items():
            streams += yield from self._begin(owner, part, again=False)
        return streams

    def _open(self, node: NodeName, shards: Sequence[ShardId], statement: bytes) -> Plan[_Stream]:
        """Ask one node and fetch its first rows; all of them where they are few."""
        few = self._is_small
        if few and self.deadline is None:
            answer: Answer = yield Execute(node, statement, self.parameters, types=True)
            return _Stream(shards, None, answer.rows, True, answer.types)
        held = yield Hold(node, self._left_s())
        try:
            yield On(held, self._begin_transaction())
            if not few:
                yield On(held, _DECLARE + statement, self.parameters)
                statement = _FETCH
            parameters = self.parameters if few else None
            answer = yield On(held, statement, parameters, types=True)
        except psycopg.Error:
            yield Release(held)
            raise
        over = few or len(answer.rows) < CHUNK
        if over:
            yield Release(held)
        return _Stream(shards, held, answer.rows, over, answer.types)

    def _more(self, stream: _Stream) -> Plan[Answer]:
        """Fetch the next rows of a stream."""
        answer: Answer = yield On(stream.held, _FETCH)
        if len(answer.rows) < CHUNK:
            yield Release(stream.held)
        return answer

    @property
    def _is_small(self) -> bool:
        """Whether no node's answer is more than a piece."""
        return self.asked.limit is not None and self.asked.limit <= CHUNK

    def _begin_transaction(self) -> bytes:
        left = self._left_s()
        if left is None:
            return b"BEGIN"
        # The server ends by itself what nobody waits for any more.
        return b"BEGIN; SET LOCAL statement_timeout TO %d" % max(1, round(left * 1000))

    def _left_s(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _is_late(self, outcome: object) -> bool:
        """Tell whether something failed because its time was up."""
        if self.deadline is None or not isinstance(outcome, BaseException):
            return False
        cancelled = isinstance(outcome, errors.QueryCanceled | NoConnection)
        return isinstance(outcome, TimeoutError) or (
            cancelled and time.monotonic() >= self.deadline
        )


class _Stream(NamedTuple):
    """The rows of some shards of one node, as far as they have come."""

    shards: Sequence[ShardId]
    held: Any
    rows: Sequence[Row]
    over: bool
    types: tuple[int, ...]


def _every(known: Known) -> list[ShardId]:
    """List all shards."""
    return [ShardId(number) for number in range(len(known.map.owners))]
