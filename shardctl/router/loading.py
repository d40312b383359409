"""The plan of `insert_many`: rows to their shards, a transaction for those of each node.

Rows are sent and acknowledged before COMMIT is, so that a connection which is lost before has
written nothing, and these rows may be sent again. Where it is lost in COMMIT nothing is sent
again: only the application can find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from shardctl.errors import Misused
from shardctl.router import fence, refusals, rows, statements
from shardctl.router.errors import CommitUnknown, InsertedInPart, NothingReturned
from shardctl.router.fence import Look
from shardctl.router.plans import SHARDS_A_STATEMENT, shown
from shardctl.router.requests import EXPECTED, Hold, Load, On, Release, Together, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.router.events import Span
    from shardctl.router.known import Known
    from shardctl.router.requests import Answer, Plan
    from shardctl.router.rows import Factory
    from shardctl.router.statements import Names, OnConflict, Term
    from shardctl.topology.handles import NodeName, ShardId
    from shardctl.topology.keys import Key

ROWS_A_TRANSACTION = 10_000
"""A move waits for transactions that write, so none may take long."""
_OF_ROWS = (TypeError, ValueError, AttributeError, OverflowError)
"""Errors of values that cannot be sent. What a signal's handler raises is not among them: it ends
the whole call, and what the call holds is given back."""
_ROWS_A_STATEMENT = 1000
_VALUES_A_STATEMENT = 60_000
"""The protocol counts a statement's values with 16 bits."""
_ATTEMPTS = 3

_Batch = dict["ShardId", list[int]]
"""Positions of rows, by shard."""


class _Outcome(NamedTuple):
    """What came of rows that were sent in one transaction."""

    node: NodeName
    positions: Sequence[int]
    touched: int = 0
    returned: Mapping[int, Any] = {}
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Loading:
    """One call of `insert_many`."""

    known: Known
    table: str
    values: Sequence[Mapping[str, Any]]
    returning: Names | None
    conflict: OnConflict | None
    factory: Factory | None
    back: tuple[Term, ...]

    def batches(self, shards: Sequence[ShardId]) -> Iterator[tuple[NodeName, _Batch]]:
        """Split rows into transactions: of one node, and neither too many rows nor shards."""
        by_shard: _Batch = {}
        for position, shard in enumerate(shards):
            by_shard.setdefault(shard, []).append(position)
        for node, owned in self.known.by_node(by_shard).items():
            batch: _Batch = {}
            room = ROWS_A_TRANSACTION
            for shard in owned:
                positions = by_shard[shard]
                while positions:
                    if not room or len(batch) == SHARDS_A_STATEMENT:
                        yield node, batch
                        batch, room = {}, ROWS_A_TRANSACTION
                    batch[shard], positions = positions[:room], positions[room:]
                    room -= len(batch[shard])
            yield node, batch

    def unit(self, node: NodeName, batch: _Batch) -> Plan[list[_Outcome]]:
        """Write rows of one node; those whose shards have moved, where these are then."""
        with self.known.span("insert_many", self.table, tuple(batch)) as span:
            return (yield from self._attempt(node, batch, span, _ATTEMPTS))

    def _attempt(
        self, node: NodeName, batch: _Batch, span: Span, attempts: int
    ) -> Plan[list[_Outcome]]:
        span.node = node
        positions = [position for some in batch.values() for position in some]
        try:
            touched, returned = yield from self._write(node, batch, span)
            return [_Outcome(node, positions, touched, returned)]
        except (*EXPECTED, *_OF_ROWS) as error:
            met: BaseException = error
        again = False
        if attempts > 1:
            try:
                again = yield from self._may_repeat(node, batch, met)
            except EXPECTED as error:  # the look at the fence found something worse
                met = error
        if not again:
            span.error = met
            return [_Outcome(node, positions, error=met)]
        span.count()
        outcomes: list[_Outcome] = []
        for owner, part in self.known.by_node(batch).items():
            these = {shard: batch[shard] for shard in part}
            outcomes += yield from self._attempt(owner, these, span, attempts - 1)
        self.known.count_repeated()
        return outcomes

    def _may_repeat(self, node: NodeName, batch: _Batch, error: BaseException) -> Plan[bool]:
        """Return whether nothing was written, and the fence or the loss that caused it is over."""
        if isinstance(error, fence.ERRORS):
            return (yield from fence.look(self.known, node, list(batch))) is not Look.AWAY
        if isinstance(error, CommitUnknown) or not refusals.is_lost(error):
            return False
        yield Wait(next(refusals.pauses()))
        return True

    def _write(self, node: NodeName, batch: _Batch, span: Span) -> Plan[tuple[int, dict[int, Any]]]:
        """Write rows in one transaction; the result is how many, and what came back by position."""
        held = yield from refusals.outwaited(self.known, lambda s: _begun(node, s), span=span)
        touched, returned = 0, dict[int, Any]()
        try:
            for shard, positions in batch.items():
                for columns, some in self._alike(positions):
                    answer = yield from self._send(held, shard, columns, some)
                    touched += answer.touched
                    if self.back:
                        if len(answer.rows) != len(some):
                            raise NothingReturned(self.table, shard)  # noqa: TRY301  # it rolls back
                        returned |= zip(some, self._shown(answer), strict=True)
            yield from _commit(held, node, tuple(batch))
        except Exception:
            yield Release(held)
            raise
        yield Release(held)
        return touched, returned

    def _alike(self, positions: Sequence[int]) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        """Split a shard's rows into those of one statement: with the same fields, and not many."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for position in positions:
            alike.setdefault(tuple(self.values[position]), []).append(position)
        for columns, some in alike.items():
            most = len(some)
            if not self._copies(columns):
                most = min(_ROWS_A_STATEMENT, _VALUES_A_STATEMENT // max(1, len(columns)))
            for first in range(0, len(some), most):
                yield columns, some[first : first + most]

    def _copies(self, columns: tuple[str, ...]) -> bool:
        return bool(columns) and not self.back and self.conflict is None

    def _send(
        self, held: Any, shard: ShardId, columns: tuple[str, ...], some: Sequence[int]
    ) -> Plan[Answer]:
        schema, values = self.known.schemas[shard], self.values
        if self._copies(columns):
            copied = [tuple(values[position].values()) for position in some]
            statement = statements.copy_in(schema, self.table, columns)
            answer: Answer = yield Load(held, statement, copied)
            return answer
        clause = "" if self.conflict is None else self.conflict.text()
        statement = statements.insert_rows(
            schema, self.table, columns, len(some), clause, self.back
        )
        given = [value for position in some for value in values[position].values()]
        answer = yield On(held, statement, given, types=True)
        return answer

    def _shown(self, answer: Answer) -> list[Any]:
        if isinstance(self.returning, str):
            values: list[Any] = shown(answer, self.returning)
            return values
        make = rows.maker(self.factory or self.known.row_factory, answer)
        return list(map(make, answer.rows))


def insert_many(
    known: Known,
    table: str,
    pairs: Iterable[tuple[Key, Mapping[str, Any]]],
    returning: Names | None,
    conflict: OnConflict | None,
    width: int,
    factory: Factory | None = None,
) -> Plan[Any]:
    """Write rows, pairs of a key and values; the result is how many, or what is to be returned.

    Raises an error of psycopg's or the router's if nothing was written, InsertedInPart if
    something was, or may have been.
    """
    if returning is not None and conflict is not None and not conflict.updated:
        raise Misused(
            "conflict_returning",
            "insert_many: `returning` cannot show which rows a conflict left out",
            hint="pass OnConflict(..., update=[...]), or read the rows afterwards",
        )
    listed = list(pairs)
    shards = [known.shard_of(key) for key, _ in listed]
    values = [row for _, row in listed]
    back = () if returning is None else statements.terms(returning)
    loading = _Loading(known, table, values, returning, conflict, factory, back)
    plans = [loading.unit(node, batch) for node, batch in loading.batches(shards)]
    outcomes: list[_Outcome] = []
    for outcome in (yield Together(plans, width)):
        if isinstance(outcome, BaseException):
            raise outcome
        outcomes += outcome
    _require_all(table, outcomes)
    if returning is None:
        return sum(outcome.touched for outcome in outcomes)
    returned = {position: one for some in outcomes for position, one in some.returned.items()}
    return [returned[position] for position in range(len(listed))]


def _require_all(table: str, outcomes: Sequence[_Outcome]) -> None:
    """Raise what tells which rows were not written, if any were not."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if not failed:
        return
    first = failed[0].error
    assert first is not None  # noqa: S101  # by the line above
    unsure = [one for one in failed if isinstance(one.error, CommitUnknown)]
    if len(failed) == len(outcomes) and not unsure:
        raise first
    written = {
        position: one.returned.get(position)
        for one in outcomes
        if one.error is None
        for position in one.positions
    }
    unknown = [position for one in unsure for position in one.positions]
    missing = [n for one in failed if one not in unsure for n in one.positions]
    errors = {one.node: one.error for one in failed if one.error is not None}
    raise InsertedInPart(table, written, missing, unknown, errors) from first


def _begun(node: NodeName, seconds: float | None) -> Plan[Any]:
    """Begin a transaction; the result is its connection."""
    held = yield Hold(node, seconds)
    try:
        yield On(held, b"BEGIN")
    except psycopg.Error:
        yield Release(held)
        raise
    return held


def _commit(held: Any, node: NodeName, shards: Sequence[ShardId]) -> Plan[None]:
    """Commit; raises CommitUnknown where the answer is lost."""
    try:
        yield On(held, b"COMMIT")
    except psycopg.Error as error:
        if refusals.is_definite(error):
            raise
        raise CommitUnknown(shards, node) from error
