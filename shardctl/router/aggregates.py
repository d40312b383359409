"""Aggregates over all shards: each shard computes its part, and the router puts these together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from psycopg import sql

from shardctl.errors import Misused
from shardctl.router import merging, rows, statements
from shardctl.router.requests import Rows
from shardctl.router.statements import Name, Names, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.router.requests import Plan
    from shardctl.router.rows import Factory
    from shardctl.router.scatter import Scatter
    from shardctl.router.statements import Term
    from shardctl.topology.handles import ShardId


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate of a field's values in all shards, for `scatter`; `name` names its column."""

    field: Name
    name: str = ""

    function: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    """What every shard computes."""

    @property
    def column(self) -> str:
        """The column's name in the result."""
        return self.name or self.function

    def terms(self) -> list[Term]:
        """Compose what every shard computes."""
        (of,) = statements.terms(self.field)
        text = of.text if isinstance(of, statements.Text) else statements.quoted(of)
        return [statements.Text(f"{part}({text})") for part in self.parts]

    def combine(self, found: Sequence[Sequence[Any]]) -> Any:
        """Put the parts of all shards together; each has one value for each of `parts`."""
        values = [value for (value,) in found if value is not None]
        return self.of(values) if values else None

    def of(self, values: Sequence[Any]) -> Any:
        """Put values together that are not NULL; there is at least one."""
        raise NotImplementedError


class Count(Aggregate):
    """How many rows there are, or how many values of a field are not NULL: an int."""

    function, parts = "count", ("pg_catalog.count",)

    def __init__(self, field: Name = sql.SQL("*"), name: str = "") -> None:  # noqa: B008  # constant
        super().__init__(field, name)

    def combine(self, found: Sequence[Sequence[Any]]) -> int:
        """Add the shards' counts."""
        return sum(count for (count,) in found)


class Sum(Aggregate):
    """The sum of a field's values, None if there is none; of the type that `sum` has."""

    function, parts = "sum", ("pg_catalog.sum",)

    def of(self, values: Sequence[Any]) -> Any:
        """Add the shards' sums."""
        return sum(values[1:], start=values[0])


class Min(Aggregate):
    """The least of a field's values, None if there is none."""

    function, parts = "min", ("pg_catalog.min",)

    def of(self, values: Sequence[Any]) -> Any:
        """Take the least, in PostgreSQL's order."""
        return min(values, key=merging.comparable)


class Max(Aggregate):
    """The greatest of a field's values, None if there is none."""

    function, parts = "max", ("pg_catalog.max",)

    def of(self, values: Sequence[Any]) -> Any:
        """Take the greatest, in PostgreSQL's order."""
        return max(values, key=merging.comparable)


class Avg(Aggregate):
    """The mean of a field's values, None if there is none: a Decimal, or a float of floats."""

    function, parts = "avg", ("pg_catalog.sum", "pg_catalog.count")

    def combine(self, found: Sequence[Sequence[Any]]) -> Any:
        """Divide the sum of all shards by their count."""
        some = [(total, count) for total, count in found if count]
        if not some:
            return None
        total = sum((one for one, _ in some[1:]), start=some[0][0])
        count = sum(count for _, count in some)
        return (Decimal(total) if isinstance(total, int) else total) / count


Fields = Names | Aggregate | Sequence[Name | Aggregate]


class Asking(Protocol):
    """What a scatter is for its caller."""

    @property
    def missing(self) -> Mapping[ShardId, str]:
        """Shards whose rows are missing, and why."""

    def plan(self) -> Plan[None]:
        """Ask, and hand out rows."""


class _Shown(NamedTuple):
    """A column of the result, and the columns of the shards' rows that it is made of."""

    name: str
    aggregate: Aggregate | None
    first: int
    width: int


@dataclass(frozen=True, slots=True)
class Aggregating:
    """A scatter whose rows are put together; its fields without aggregates are the groups."""

    scatter: Scatter
    shown: Sequence[_Shown]
    groups: int
    """So many columns of the shards' rows, the first, are the group."""
    order: Sequence[tuple[int, Order]]
    """Positions of columns of the result, and how it is ordered by them."""
    limit: int | None
    factory: Factory | None

    @property
    def missing(self) -> Mapping[ShardId, str]:
        """Shards whose rows are missing, and why."""
        return self.scatter.missing

    def plan(self) -> Plan[None]:
        """Ask all shards, and hand out the rows that come of it."""
        found: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
        yield from _each(self.scatter.plan(), lambda row: self._put(found, row))
        result = [self._row(parts) for parts in found.values()]
        columns = self._columns()
        if self.order:
            result.sort(key=merging.ordering(self.order, [one.type_code for one in columns]))
        if self.factory is not None:
            result = list(map(self.factory(rows.Described(columns)), result))
        yield Rows(result[: self.limit])

    def _put(self, found: dict[tuple[Any, ...], list[Sequence[Any]]], row: Sequence[Any]) -> None:
        try:
            found.setdefault(tuple(map(_alike, row[: self.groups])), []).append(row)
        except TypeError as error:
            raise Misused(
                "group_unsupported",
                "scatter: rows cannot be grouped by a field with arrays or JSON",
                hint='pass the field as text, such as sql.SQL("tags::text")',
            ) from error

    def _row(self, parts: Sequence[Sequence[Any]]) -> Any:
        """Make a row of the rows that shards have for a group."""
        return tuple(
            parts[0][one.first]
            if one.aggregate is None
            else one.aggregate.combine([row[one.first : one.first + one.width] for row in parts])
            for one in self.shown
        )

    def _columns(self) -> list[rows.Column]:
        """Give the result's columns; raises OrderUnsupported."""
        types = [column.type_code for column in self.scatter.columns]
        for one in self.shown:
            if isinstance(one.aggregate, Min | Max) and types:
                merging.require_ordered(one.name, types[one.first])
        return [rows.Column(one.name, types[one.first] if types else 0) for one in self.shown]


def has_any(fields: Fields) -> bool:
    """Return whether aggregates are among the fields."""
    if isinstance(fields, Aggregate):
        return True
    return not isinstance(fields, str | sql.Composable) and any(
        isinstance(one, Aggregate) for one in fields
    )


def aggregating(
    fields: Fields,
    order_by: Sequence[Order],
    limit: int | None,
    factory: Factory | None,
    scatter: Callable[[tuple[Term, ...], tuple[Term, ...]], Scatter],
) -> Aggregating:
    """Split fields into groups and aggregates; `scatter` makes the question of both."""
    one_field = isinstance(fields, str | sql.Composable | Aggregate)
    listed: list[Any] = [fields] if one_field else list(fields)  # type: ignore[arg-type]
    groups = statements.terms([one for one in listed if not isinstance(one, Aggregate)])
    terms, shown, grouped = list(groups), list[_Shown](), iter(range(len(groups)))
    for one in listed:
        if isinstance(one, Aggregate):
            parts = one.terms()
            shown.append(_Shown(one.column, one, len(terms), len(parts)))
            terms += parts
        else:
            number = next(grouped)
            shown.append(_Shown(str(one) if isinstance(one, str) else "?column?", None, number, 1))
    order = [(_position(one, listed), one) for one in order_by]
    asked = scatter(tuple(terms), groups)
    return Aggregating(asked, shown, len(groups), order, statements.number(limit), factory)


def _position(order: Order, fields: Sequence[Any]) -> int:
    if order.field not in fields:
        raise Misused(
            "order_not_among_fields",
            f"scatter: rows with aggregates cannot be ordered by {order.field}",
            hint="order them by one of the fields, or by an aggregate that is one",
        )
    return fields.index(order.field)


def _each(plan: Plan[None], take: Callable[[Sequence[Any]], None]) -> Plan[None]:
    """Run a plan that hands rows out, and take them."""
    try:
        request = next(plan)
        while True:
            if isinstance(request, Rows):
                for row in request.rows:
                    take(row)
                request = next(plan)
                continue
            try:
                answer = yield request
            except Exception as error:  # noqa: BLE001  # the plan raises it, or knows better
                request = plan.throw(error)
            else:
                request = plan.send(answer)
    except StopIteration:
        return


def _alike(value: Any) -> Any:
    """Give what equals for values that PostgreSQL puts into one group."""
    hash(value)
    return "NaN" if isinstance(value, float | Decimal) and math.isnan(value) else value
