"""The plan of a question to every shard: begun on all nodes, merged as rows come."""

from __future__ import annotations

import math
import operator
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import errors

from shardctl.router import fence, refusals, statements
from shardctl.router.bounded import GRACE_S
from shardctl.router.errors import DeadlinePassed, NoConnection
from shardctl.router.fence import Look
from shardctl.router.merging import Merging, sort_key
from shardctl.router.plans import parts, require_seen
from shardctl.router.requests import Answer, Execute, Hold, On, Release, Reserve, Rows, Together
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.router.known import Known
    from shardctl.router.plans import Opened
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
    """One query to every shard; `missing` is filled if partial results are allowed."""

    known: Known
    asked: Gathering
    parameters: Mapping[str, Any]
    width: int
    deadline: float | None
    """On `time.monotonic`."""
    partial: bool
    opened: Sequence[Opened] = ()
    """The caller's own transactions."""
    missing: dict[ShardId, str] = field(default_factory=dict)
    """Shards whose rows are missing, and why."""

    def plan(self) -> Plan[None]:
        """Ask, and hand out rows.

        Raises WritesUnseen, DeadlinePassed, NoConnection and psycopg's errors.
        """
        yield from require_seen(self.opened, range(len(self.known.map.owners)))
        asking = self._asking(_every(self.known))
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

    def _asking(self, shards: Sequence[ShardId]) -> list[_Part]:
        """Part shards into those of a statement each; all nodes have work from the first on."""
        numbered = [
            (number, _Part(node, part))
            for node, owned in self.known.by_node(shards).items()
            for number, part in enumerate(parts(owned))
        ]
        numbered.sort(key=operator.itemgetter(0))
        return [part for _, part in numbered]

    def _wave(self, asking: Sequence[_Part], limit: int | None) -> Plan[int]:
        """Ask for some shards, and hand out rows in order; the result is how many."""
        reserved, streams = yield from self._begun(asking)
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
                break
            answers = yield from self._together(
                [self._more(streams[number]) for number in wanting],
                [streams[number].shards for number in wanting],
            )
            for number, answer in zip(wanting, answers, strict=True):
                more: Sequence[Row] = [] if answer is None else answer.rows
                merging.feed(number, more, over=len(more) < CHUNK)
        if reserved is not None:
            yield Release(reserved)
        return handed

    def _begun(self, asking: Sequence[_Part]) -> Plan[tuple[Any, list[_Stream]]]:
        """Ask, and once more if shards were missing on their node.

        The result is what was reserved, or None, and streams.
        """
        reserved, streams, refused = yield from self._ask(asking)
        if not refused:
            return reserved, streams
        shards = [shard for part in refused for shard in part.shards]
        if reserved is not None:
            # While waiting for a shard or a connection nothing is held: all streams start again.
            for stream in streams:
                yield Release(stream.held)
            yield Release(reserved)
            shards, streams = [shard for part in asking for shard in part.shards], []
        looks = yield from self._together(
            [fence.look(self.known, part.node, part.shards) for part in refused],
            [part.shards for part in refused],
        )
        for part, found in zip(refused, looks, strict=True):
            if found is Look.AWAY:
                raise part.error
        again = self._asking([shard for shard in shards if shard not in self.missing])
        reserved, others, refused_again = yield from self._ask(again)
        for part in refused_again:
            raise part.error
        for _ in refused:
            self.known.count_repeated()
        return reserved, [*streams, *others]

    def _ask(self, asking: Sequence[_Part]) -> Plan[tuple[Any, list[_Stream], list[_Refused]]]:
        """Ask nodes; the result is what was reserved, streams, and those where shards are not."""
        reserved = None
        if not self._is_small:
            (reserved,) = yield from self._together(
                [self._reserve(asking)], [[shard for part in asking for shard in part.shards]]
            )
            for part in asking:
                if reserved is not None and part.node in reserved.refused:
                    self._miss(part.shards, NoConnection(part.node, reserved.refused[part.node]))
            asking = [part for part in asking if not self.missing.keys() & part.shards]
        begun = yield from self._together(
            [self._begin(part) for part in asking], [part.shards for part in asking]
        )
        return (
            reserved,
            [one for one in begun if isinstance(one, _Stream)],
            [one for one in begun if isinstance(one, _Refused)],
        )

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
            self._miss(part, outcome)
            results.append(None)
        return results

    def _miss(self, shards: Iterable[ShardId], error: BaseException) -> None:
        """Note why rows of shards are missing."""
        why = "no answer in time" if self._is_late(error) else str(error)
        self.missing.update(dict.fromkeys(shards, why))

    def _reserve(self, asking: Sequence[_Part]) -> Plan[Any]:
        """Set a place aside for each connection that will be held; the result is a Reserved."""
        wanted = Counter(part.node for part in asking)
        return (yield Reserve(wanted, self._left_s(), some=self.partial))

    def _begin(self, part: _Part) -> Plan[_Stream | _Refused]:
        """Ask one node, if it has the shards."""
        try:
            return (yield from self._open(part))
        except fence.ERRORS as error:
            return _Refused(part.node, part.shards, error)

    def _open(self, part: _Part) -> Plan[_Stream]:
        """Ask one node and fetch its first rows; all of them where they are few."""
        node, shards = part
        statement = statements.gather([self.known.schemas[s] for s in shards], self.asked)
        few = self._is_small
        if few and self.deadline is None:
            asking = Execute(node, statement, self.parameters, types=True)
            answer = yield from refusals.execute(self.known, asking)
            return _Stream(shards, None, answer.rows, True, answer.types)
        held = yield from refusals.outwaited(self.known, partial(self._held, node), self.deadline)
        try:
            if not few:
                yield On(held, _DECLARE + statement, self.parameters)
                statement = _FETCH
            parameters = self.parameters if few else None
            answer = yield On(held, statement, parameters, types=True)
        except (psycopg.Error, TimeoutError):
            yield Release(held)
            raise
        over = few or len(answer.rows) < CHUNK
        if over:
            yield Release(held)
        return _Stream(shards, held, answer.rows, over, answer.types)

    def _held(self, node: NodeName, seconds: float | None) -> Plan[Any]:
        """Begin a transaction on a node, with a connection taken within so many seconds."""
        until = None if self.deadline is None else self.deadline + GRACE_S
        held = yield Hold(node, self._left_s() if seconds is None else seconds, until)
        try:
            yield On(held, self._begin_transaction())
        except (psycopg.Error, TimeoutError):
            yield Release(held)
            raise
        return held

    def _more(self, stream: _Stream) -> Plan[Answer]:
        """Fetch the next rows of a stream."""
        try:
            if self.deadline is not None:
                yield On(stream.held, self._limit())
            answer: Answer = yield On(stream.held, _FETCH)
        except (psycopg.Error, TimeoutError):
            yield Release(stream.held)
            raise
        if len(answer.rows) < CHUNK:
            yield Release(stream.held)
        return answer

    @property
    def _is_small(self) -> bool:
        """Whether no node's answer is more than a piece."""
        return self.asked.limit is not None and self.asked.limit <= CHUNK

    def _begin_transaction(self) -> bytes:
        return b"BEGIN" if self.deadline is None else b"BEGIN; " + self._limit()

    def _limit(self) -> bytes:
        """Make the server end a statement at the deadline by itself."""
        return b"SET LOCAL statement_timeout TO %d" % max(
            1, math.ceil((self._left_s() or 0) * 1000)
        )

    def _left_s(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _is_late(self, outcome: object) -> bool:
        """Return whether something failed because its time was up."""
        if self.deadline is None or not isinstance(outcome, BaseException):
            return False
        cancelled = isinstance(outcome, errors.QueryCanceled | NoConnection)
        return isinstance(outcome, TimeoutError) or (
            cancelled and time.monotonic() >= self.deadline
        )


class _Part(NamedTuple):
    """Shards that one statement asks."""

    node: NodeName
    shards: Sequence[ShardId]


class _Refused(NamedTuple):
    """Shards of which at least one was missing on the node, or lacks the table."""

    node: NodeName
    shards: Sequence[ShardId]
    error: psycopg.Error


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
