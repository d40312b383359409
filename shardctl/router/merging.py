"""Rows of several streams into one order, without waiting for more of them than that takes."""

from __future__ import annotations

import heapq
import math
from collections import deque
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from psycopg import postgres

from shardctl.router.errors import OrderUnsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.router.requests import Row
    from shardctl.router.statements import Gathering, Order

# Types whose values Python compares as PostgreSQL does.
_ALIKE = frozenset(["bool", "bytea", "uuid", "int2", "int4", "int8", "oid", "float4", "float8"])
_ALIKE |= {"numeric", "date", "time", "timestamp", "timestamptz"}
_TEXTS = frozenset(["text", "varchar", "bpchar", "name"])


class _Reversed:
    """A value that sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]  # it is for comparisons only


def sort_key(asked: Gathering, types: Sequence[int]) -> Callable[[Row], Any]:
    """Give what sorts rows as PostgreSQL does; raises OrderUnsupported.

    `types` are the OIDs of the columns.
    """
    return ordering(list(zip(asked.keys, asked.order, strict=True)), types)


def ordering(columns: Sequence[tuple[int, Order]], types: Sequence[int]) -> Callable[[Row], Any]:
    """Give what sorts rows by the columns at some positions; raises OrderUnsupported."""
    for position, order in columns:
        require_ordered(order.field, types[position], by_bytes=order.by_bytes)

    def key(row: Row) -> list[Any]:
        keys = []
        for position, order in columns:
            value = comparable(row[position])
            keys.append(_Reversed(value) if order.descending else value)
        return keys

    return key


def require_ordered(field: str, oid: int, *, by_bytes: bool = False) -> None:
    """Refuse a type whose values Python orders otherwise; raises OrderUnsupported."""
    found = postgres.types.get(oid)
    kind = found.name if found else f"OID {oid}"
    if kind not in _ALIKE and not (by_bytes and kind in _TEXTS):
        raise OrderUnsupported(field, kind)


def comparable(value: Any) -> tuple[int, Any]:
    """Put NaN above all numbers, and NULL above that."""
    if value is None:
        return 2, None
    if isinstance(value, datetime) and value.tzinfo is not None:
        # Python compares those of one zone by the clock on the wall, which is put back in autumn.
        return 0, value.astimezone(UTC)
    if isinstance(value, float | Decimal) and math.isnan(value):
        return 1, None
    return 0, value


class Merging:
    """Streams of rows, each in order, that become one; without a key, in any order.

    Feed every stream that is `wanting`, take what is `ready`, until `wanting` is empty.
    """

    def __init__(self, streams: int, key: Callable[[Row], Any] | None, limit: int | None) -> None:
        self._key = key
        self._left = math.inf if limit is None else limit
        self._waiting: list[deque[Row]] = [deque() for _ in range(streams)]
        self._open = set(range(streams))
        self._wanting = set(range(streams))
        # The first row of every stream that has one: its key, the stream, the row.
        self._heads: list[tuple[Any, int, Row]] = []

    def wanting(self) -> list[int]:
        """List the streams whose next rows have to be known before anything else can be taken."""
        return sorted(self._wanting) if self._left else []

    def feed(self, stream: int, rows: Sequence[Row], *, over: bool) -> None:
        """Add rows of a stream that was in `wanting`; `over` if these were its last."""
        self._waiting[stream].extend(rows)
        if over:
            self._open.discard(stream)
        if rows or over:
            self._wanting.discard(stream)
        if rows and self._key is not None:
            self._push(stream)

    def ready(self) -> Iterator[Row]:
        """Give all rows whose turn it is."""
        if self._key is None:
            yield from self._any()
            return
        heads, waiting = self._heads, self._waiting
        while heads and not self._wanting and self._left:
            _, stream, row = heapq.heappop(heads)
            if waiting[stream]:
                self._push(stream)
            elif stream in self._open:
                self._wanting.add(stream)
            self._left -= 1
            yield row

    def _push(self, stream: int) -> None:
        row = self._waiting[stream].popleft()
        key = self._key(row) if self._key is not None else None
        heapq.heappush(self._heads, (key, stream, row))

    def _any(self) -> Iterator[Row]:
        for rows in self._waiting:
            while rows and self._left:
                self._left -= 1
                yield rows.popleft()
        self._wanting = set(self._open)
