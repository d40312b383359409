"""A client's operations on a shard, recorded before they are sent and when acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.traffic.record import Kind
from shardctl.traffic.session import Lost, Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence
    from random import Random

    from psycopg.pq.abc import PGresult

    from shardctl.topology.model import ShardId
    from shardctl.traffic.client_routes import Statements
    from shardctl.traffic.record import Record
    from shardctl.traffic.session import RoutedSession, Session

    Steps = Generator[tuple[bytes, Sequence[bytes]], PGresult, None]
    """Yields statements with parameters; receives each result, or Refused or Lost.

    An operation that was refused gives them again, with the same identity.
    """

_PAYLOAD = b"a sunset, https://photos.example/".ljust(80, b".")


_WEIGHTS = {Kind.insert: 45, Kind.update: 20, Kind.select: 25, Kind.both: 10}
_KINDS = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))


class Insert:
    """A new row."""

    def __init__(self, record: Record, shard: ShardId) -> None:
        self._record = record
        self._number = record.attempt_insert(shard)
        self._parameters = (b"%d" % record.client, b"%d" % self._number, _PAYLOAD)

    def steps(self, statements: Statements) -> Steps:
        """Insert it; the database makes its id."""
        result = yield statements.insert, self._parameters
        self._id = int(result.get_value(0, 0) or b"")

    def acknowledge(self) -> None:
        """Record its id."""
        self._record.inserted(self._number, self._id)


class Update:
    """The next version of a row whose insert was acknowledged."""

    def __init__(self, record: Record, number: int) -> None:
        self._record = record
        self._number = number
        self._expected = record.acknowledged[number]
        self._version = record.attempt_update(number)
        self._parameters = (b"%d" % record.ids[number], b"%d" % self._version, _PAYLOAD)

    def steps(self, statements: Statements) -> Steps:
        """Update it."""
        self._rows = (yield statements.update, self._parameters).command_tuples

    def acknowledge(self) -> None:
        """Record the version, or that there was no row to update."""
        if self._rows:
            self._record.updated(self._number, self._version)
        else:
            self._record.found_stale(self._number, self._expected, None)


class Select:
    """A read of a row whose insert was acknowledged."""

    def __init__(self, record: Record, number: int) -> None:
        self._record = record
        self._number = number
        self._expected = record.acknowledged[number]
        self._parameters = (b"%d" % record.ids[number],)

    def steps(self, statements: Statements) -> Steps:
        """Read it."""
        self._result = yield statements.select, self._parameters

    def acknowledge(self) -> None:
        """Compare the version with the possible ones."""
        seen = int(self._result.get_value(0, 0) or b"0") if self._result.ntuples else None
        if seen is None or not self._expected <= seen <= self._record.attempted[self._number]:
            self._record.found_stale(self._number, self._expected, seen)


class Both:
    """An insert and an update in one transaction."""

    def __init__(self, insert: Insert, update: Update) -> None:
        self._insert = insert
        self._update = update

    def steps(self, statements: Statements) -> Steps:
        """Run both and commit."""
        yield b"BEGIN", ()
        try:
            yield from self._insert.steps(statements)
            yield from self._update.steps(statements)
        except Lost:
            raise
        except Refused:
            yield b"ROLLBACK", ()
            raise
        yield b"COMMIT", ()

    def acknowledge(self) -> None:
        """Record both."""
        self._insert.acknowledge()
        self._update.acknowledge()


Operation = Insert | Update | Select | Both


def run(operation: Operation, session: Session | RoutedSession, statements: Statements) -> None:
    """Run an operation over a session, waiting for every answer; raises Refused and Lost."""
    steps = operation.steps(statements)
    try:
        request = next(steps)
        while True:
            try:
                result = session.run(*request)
            except Refused as error:
                request = steps.throw(error)
            else:
                request = steps.send(result)
    except StopIteration:
        return


def draw(
    random: Random, record: Record, shard: ShardId, *, busy: Collection[int] = ()
) -> tuple[Kind, Operation, int | None]:
    """Create an operation, and return its kind and the number of the row it updates or reads.

    It becomes an insert if the shard has no row, or if the chosen row is `busy`: a concurrent
    change by another operation would look like a stale row.
    """
    kind = _KINDS[int(random.random() * len(_KINDS))]
    number = None if kind is Kind.insert else record.pick(shard)
    if number is None or number in busy:
        return Kind.insert, Insert(record, shard), None
    if kind is Kind.update:
        return kind, Update(record, number), number
    if kind is Kind.select:
        return kind, Select(record, number), number
    return kind, Both(Insert(record, shard), Update(record, number)), number
