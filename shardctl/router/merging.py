"""One statement for many shards of a node, and the rows of several nodes in PostgreSQL's order."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from psycopg import postgres, sql

from shardctl.router import statements
from shardctl.router.errors import OrderUnsupported
from shardctl.router.statements import KEPT, Aggregate, identifier, of_shard, raw, select

if TYPE_CHECKING:
    from shardctl.router.statements import (
        Answer,
        Fields,
        Order,
        Parameters,
        Row,
        Term,
        Where,
    )

_PLACEHOLDER = re.compile(r"%(%|[sbt]|\([^)]*\)[sbt])")
_NUMBER = "\0\0"
"""What the number of a shard within the statement replaces."""
_ALIKE = {
    "bool", "bytea", "uuid", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "date",
    "time", "timestamp", "timestamptz",
}  # fmt: skip
"""Types whose values Python compares as PostgreSQL does."""
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
"""Adds decimals as numeric does: by default Python rounds to 28 digits."""
_SUMMED = {"int2", "int4", "int8", "float4", "float8", "numeric", "interval"}


@dataclass(frozen=True, slots=True)
class Gathering:
    """What is asked of every shard, for `gather`."""

    table: str
    fields: tuple[Term, ...]
    where: str | None
    order: tuple[Order, ...]
    limit: int | None

    @property
    def columns(self) -> tuple[Term, ...]:
        """The fields, then those by which it is ordered."""
        return (*self.fields, *(order.field for order in self.order))


def gather(schemas: Sequence[str], asked: Gathering) -> bytes:
    """Compose one statement for several shards of a node: ordered, and no more than the limit.

    The limit is in every sub-select, too, so that no shard reads more rows than needed.
    """
    one = select(asked.table, asked.columns, asked.where, asked.order, asked.limit)
    return _united([of_shard(one, schema) for schema in schemas], asked)


def select_keys(
    schemas: Sequence[str],
    asked: Gathering,
    key_field: str,
    limit_per_key: int | None,
    *,
    texts: bool,
) -> bytes:
    """Compose the same for rows of some keys, which are parameters: an array for each shard.

    `texts` if the keys are: an array of these has no type of its own.
    """
    one = _of_keys(asked, key_field, limit_per_key, texts)
    parts = [
        of_shard(one.replace(_NUMBER.encode(), b"%d" % position), schema)
        for position, schema in enumerate(schemas)
    ]
    return _united(parts, asked)


def keys_of(position: int | str) -> str:
    """Name the parameter with the keys of a shard, by its position in the statement."""
    return f"keys {position}"


def bound(where: str | None, parameters: Parameters) -> tuple[str | None, Mapping[str, Any]]:
    """Name the parameters of a condition that a statement has many times, each bound once.

    >>> bound("a = %s AND b LIKE '%%x'", [5])
    ("a = %(0)s AND b LIKE '%%x'", {'0': 5})
    """
    if parameters is None or where is None:
        return where, {}
    if isinstance(parameters, Mapping):
        return where, parameters
    numbers = iter(range(len(parameters) + where.count("%") + 1))

    def named(found: re.Match[str]) -> str:
        kind = found[1]
        return found[0] if kind == "%" or kind[0] == "(" else f"%({next(numbers)}){kind}"

    text = _PLACEHOLDER.sub(named, where)
    wanted = next(numbers)
    if wanted != len(parameters):
        raise ValueError(f"the condition has {wanted} placeholders but {len(parameters)} values")
    return text, {str(number): value for number, value in enumerate(parameters)}


def gathering(
    fields: Fields,
    table: str,
    where: Where | None,
    parameters: Parameters,
    order_by: str | Sequence[str] | None,
    limit: int | None,
) -> tuple[Gathering, dict[str, Any]]:
    """Take what is asked of many shards; give also the parameters, each with a name."""
    text, named = bound(statements.condition(where, parameters), parameters)
    order, number = statements.orders(order_by), statements.number(limit)
    return Gathering(table, statements.terms(fields), text, order, number), dict(named)


def aggregates(fields: Fields) -> list[Aggregate]:
    """Give the fields if they are aggregates; raises ValueError where only some are."""
    if isinstance(fields, str | sql.Composable | Aggregate):
        return [fields] if isinstance(fields, Aggregate) else []
    listed = list(fields)
    found = [one for one in listed if isinstance(one, Aggregate)]
    if found and len(found) < len(listed):
        raise ValueError("aggregates are of all rows: no field can be beside them")
    return found


def merged(asked: Gathering, answers: Sequence[Answer]) -> list[Row]:
    """Put rows of answers in the order that was asked for, no more than the limit.

    Raises OrderUnsupported.
    """
    rows = [row for answer in answers for row in answer.rows]
    width = len(asked.fields)
    if answers:
        # The last field first: sorting keeps the order of what is equal. It finds the parts that
        # are in order already, and merges them.
        for position, order in reversed(list(enumerate(asked.order, width))):
            if (kind := _kind(answers[0].types[position])) not in _ALIKE:
                raise OrderUnsupported(order.field, kind)
            rows.sort(key=partial(_key, position), reverse=order.descending)
    return [row[:width] for row in rows[: asked.limit]]


def combined(asked: Sequence[Aggregate], answers: Sequence[Answer]) -> Row:
    """Compute aggregates of all shards from those of each; raises OrderUnsupported."""
    return tuple(
        _combined(one, [row[n] for answer in answers for row in answer.rows], answers[0].types[n])
        for n, one in enumerate(asked)
    )


def _combined(asked: Aggregate, values: Sequence[Any], oid: int) -> Any:
    adds = asked.function in {"count", "sum"}
    if (kind := _kind(oid)) not in (_SUMMED if adds else _ALIKE):
        raise OrderUnsupported(str(asked.field), kind)
    some = [value for value in values if value is not None]
    if not some:
        return None
    if adds:
        with localcontext(_EXACT):
            return sum(some[1:], some[0])
    return (min if asked.function == "min" else max)(some, key=_comparable)


def _kind(oid: int) -> str:
    found = postgres.types.get(oid)
    return found.name if found else f"OID {oid}"


def _key(position: int, row: Row) -> tuple[int, Any]:
    return _comparable(row[position])


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


@lru_cache(maxsize=KEPT)
def _of_keys(asked: Gathering, key_field: str, limit_per_key: int | None, texts: bool) -> bytes:
    array, key = sql.Placeholder(keys_of(_NUMBER)), identifier(key_field)
    if limit_per_key is None:
        condition = sql.SQL("{} = ANY ({})").format(key, array)
    else:
        condition = sql.SQL('{} = "shardctl keys"."key"').format(key)
    if asked.where is not None:
        condition += sql.SQL(" AND ({})").format(raw(asked.where))
    limit = asked.limit if limit_per_key is None else limit_per_key
    where = condition.as_string(None)
    part = select(asked.table, asked.columns, where, asked.order, limit)
    if limit_per_key is None:
        return part
    keyed = sql.SQL(
        'SELECT "shardctl rows".* FROM pg_catalog.unnest({}{}) AS "shardctl keys" ("key")'
        ' CROSS JOIN LATERAL ({}) AS "shardctl rows"'
    ).format(array, sql.SQL("::text[]" if texts else ""), sql.SQL(part.decode()))
    return _cut(keyed.as_bytes(None), asked)


def _united(parts: Sequence[bytes], asked: Gathering) -> bytes:
    """Make one statement of those for each shard."""
    if len(parts) == 1:
        return parts[0]
    return _cut(b"\nUNION ALL ".join(b"(%b)" % part for part in parts), asked, b"\n")


def _cut(whole: bytes, asked: Gathering, between: bytes = b" ") -> bytes:
    """Order the rows of a statement by position, and limit them."""
    if asked.order:
        by = [
            b"%d DESC" % position if one.descending else b"%d" % position
            for position, one in enumerate(asked.order, len(asked.fields) + 1)
        ]
        whole += between + b"ORDER BY " + b", ".join(by)
    return whole + (b"" if asked.limit is None else b" LIMIT %d" % asked.limit)
