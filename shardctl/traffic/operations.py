"""What a client does to a shard; an operation is noted before it is sent, and when acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardctl.traffic.record import Kind
from shardctl.traffic.session import Lost, Refused

if TYPE_CHECKING:
    from shardctl.topology.model import ShardId
    from shardctl.traffic.record import Record
    from shardctl.traffic.session import Talk
    from shardctl.traffic.ways import Statements

_PAYLOAD = b"a sunset, https://photos.example/".ljust(80, b".")


@dataclass(frozen=True, slots=True)
class Mix:
    """How often a client does what, as weights.

    >>> [kind.name for kind in Mix(insert=2, update=1, select=0, both=1).kinds()]
    ['insert', 'insert', 'update', 'both']
    """

    insert: int = 45
    update: int = 20
    select: int = 25
    both: int = 10
    """An insert and an update in one transaction."""

    def kinds(self) -> tuple[Kind, ...]:
        """List each kind as often as its weight says; raises ValueError where none is left."""
        found = tuple(kind for kind in Kind for _ in range(getattr(self, kind.name)))
        if not found:
            raise ValueError("a load that does nothing is none")
        return found


class Operation(Protocol):
    """One operation; `run` may be called again after Refused, with the same identity."""

    def run(self, session: Talk, statements: Statements) -> None:
        """Do it and wait for the answer; raises Refused and Lost."""

    def acknowledge(self) -> None:
        """Note that it was done, after `run` returned."""


class Insert:
    """A new row."""

    def __init__(self, record: Record, shard: ShardId) -> None:
        self._record = record
        self._number = record.attempt_insert(shard)
        self._parameters = (b"%d" % record.client, b"%d" % self._number, _PAYLOAD)

    def run(self, session: Talk, statements: Statements) -> None:
        """Insert it; the database makes its id."""
        result = session.run(statements.insert, self._parameters)
        self._id = int(result.get_value(0, 0) or b"")

    def acknowledge(self) -> None:
        """Note its id."""
        self._record.inserted(self._number, self._id)


class Update:
    """The next version of a row whose insert was acknowledged."""

    def __init__(self, record: Record, number: int) -> None:
        self._record = record
        self._number = number
        self._expected = record.acknowledged[number]
        self._version = record.attempt_update(number)
        self._parameters = (b"%d" % record.ids[number], b"%d" % self._version, _PAYLOAD)

    def run(self, session: Talk, statements: Statements) -> None:
        """Update it."""
        self._rows = session.run(statements.update, self._parameters).command_tuples

    def acknowledge(self) -> None:
        """Note the version, or that there was no row to update."""
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

    def run(self, session: Talk, statements: Statements) -> None:
        """Read it."""
        self._result = session.run(statements.select, self._parameters)

    def acknowledge(self) -> None:
        """Compare the version with those that it can have."""
        seen = int(self._result.get_value(0, 0) or b"0") if self._result.ntuples else None
        if seen is None or not self._expected <= seen <= self._record.attempted[self._number]:
            self._record.found_stale(self._number, self._expected, seen)


class Both:
    """An insert and an update in one transaction."""

    def __init__(self, insert: Insert, update: Update) -> None:
        self._insert = insert
        self._update = update

    def run(self, session: Talk, statements: Statements) -> None:
        """Do both and commit."""
        session.run(b"BEGIN")
        try:
            self._insert.run(session, statements)
            self._update.run(session, statements)
        except Lost:
            raise
        except Refused:
            session.run(b"ROLLBACK")
            raise
        session.run(b"COMMIT")

    def acknowledge(self) -> None:
        """Note both."""
        self._insert.acknowledge()
        self._update.acknowledge()


def draw(kind: Kind, record: Record, shard: ShardId) -> tuple[Kind, Operation]:
    """Make an operation of this kind; an insert where there is no row yet to update or read."""
    number = None if kind is Kind.insert else record.pick(shard)
    if number is None:
        return Kind.insert, Insert(record, shard)
    if kind is Kind.update:
        return kind, Update(record, number)
    if kind is Kind.select:
        return kind, Select(record, number)
    return kind, Both(Insert(record, shard), Update(record, number))
