"""Rows of several answers in one order: PostgreSQL's."""

from __future__ import annotations

import heapq
import itertools
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from psycopg import postgres

from shardctl.router.errors import OrderUnsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardctl.router.statements import Aggregate, Answer, Gathering, Row

# Types whose values Python compares as PostgreSQL does.
_ALIKE = frozenset(["bool", "bytea", "uuid", "int2", "int4", "int8", "oid", "float4", "float8"])
_ALIKE |= {"numeric", "date", "time", "timestamp", "timestamptz"}
_SUMMED = frozenset(["int2", "int4", "int8", "float4", "float8", "numeric", "interval"])


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


def merged(asked: Gathering, answers: Sequence[Answer]) -> list[Row]:
    """Put rows of answers in the order that was asked for, no more than the limit.

    Raises OrderUnsupported.
    """
    listed = [answer.rows for answer in answers]
    rows: Iterable[Row] = itertools.chain.from_iterable(listed)
    if asked.order and answers:
        rows = heapq.merge(*listed, key=_sort_key(asked, answers[0].types))
    width = len(asked.fields)
    found = itertools.islice(rows, asked.limit)
    return list(found) if width == len(asked.columns) else [row[:width] for row in found]


def combined(asked: Sequence[Aggregate], answers: Sequence[Answer]) -> Row:
    """Compute aggregates of all shards from those of each; raises OrderUnsupported."""
    return tuple(
        _combined(one, [row[n] for answer in answers for row in answer.rows], answers[0].types[n])
        for n, one in enumerate(asked)
    )


def _combined(asked: Aggregate, values: Sequence[Any], oid: int) -> Any:
    kind = _kind(oid)
    if kind not in (_SUMMED if asked.function in {"count", "sum"} else _ALIKE):
        raise OrderUnsupported(str(asked.field), kind)
    some = [value for value in values if value is not None]
    if not some:
        return None
    if asked.function in {"count", "sum"}:
        return sum(some[1:], some[0])
    return (min if asked.function == "min" else max)(some, key=_comparable)


def _kind(oid: int) -> str:
    found = postgres.types.get(oid)
    return found.name if found else f"OID {oid}"


def _sort_key(asked: Gathering, types: Sequence[int]) -> Callable[[Row], Any]:
    """Give what sorts rows as PostgreSQL does; `types` are the OIDs of the columns."""
    columns = list(zip(asked.keys, asked.order, strict=True))
    for position, order in columns:
        if (kind := _kind(types[position])) not in _ALIKE:
            raise OrderUnsupported(order.field, kind)

    def key(row: Row) -> list[Any]:
        keys = []
        for position, order in columns:
            value = _comparable(row[position])
            keys.append(_Reversed(value) if order.descending else value)
        return keys

    return key


def _comparable(value: Any) -> tuple[int, Any]:
    """Put NaN above all numbers, and NULL above that."""
    if value is None:
        return 2, None
    if isinstance(value, datetime) and value.tzinfo is not None:
        # Python compares those of one zone by the clock on the wall, which is put back in autumn.
        return 0, value.astimezone(UTC)
    if isinstance(value, float | Decimal) and math.isnan(value):
        return 1, None
    return 0, value
