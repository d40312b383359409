"""Rows of several answers in one order: PostgreSQL's."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, localcontext
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from psycopg import postgres

from shardctl.router.errors import OrderUnsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.router.statements import Aggregate, Answer, Gathering, Row

# Types whose values Python compares as PostgreSQL does.
_PLAIN = frozenset(["bool", "bytea", "uuid", "int2", "int4", "int8", "oid"])
_PLAIN |= {"date", "time", "timestamp"}
_ALIKE = _PLAIN | {"float4", "float8", "numeric", "timestamptz"}
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
"""Adds decimals as numeric does: by default Python rounds to 28 digits."""
_SUMMED = frozenset(["int2", "int4", "int8", "float4", "float8", "numeric", "interval"])


def merged(asked: Gathering, answers: Sequence[Answer]) -> list[Row]:
    """Put rows of answers in the order that was asked for, no more than the limit.

    Raises OrderUnsupported.
    """
    rows = [row for answer in answers for row in answer.rows]
    if answers:
        # The last field first: sorting keeps the order of what is equal. It finds the parts that
        # are in order already, and merges them.
        for position, order in reversed(list(zip(asked.keys, asked.order, strict=True))):
            kind = _kind(answers[0].types[position])
            if kind not in _ALIKE:
                raise OrderUnsupported(order.field, kind)
            rows.sort(key=_key(rows, position, kind), reverse=order.descending)
    width = len(asked.fields)
    found = rows[: asked.limit]
    return found if width == len(asked.columns) else [row[:width] for row in found]


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
        with localcontext(_EXACT):
            return sum(some[1:], some[0])
    return (min if asked.function == "min" else max)(some, key=_comparable)


def _kind(oid: int) -> str:
    found = postgres.types.get(oid)
    return found.name if found else f"OID {oid}"


def _key(rows: Sequence[Row], position: int, kind: str) -> Callable[[Row], Any]:
    if kind in _PLAIN and None not in [row[position] for row in rows]:
        return itemgetter(position)
    return lambda row: _comparable(row[position])


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
