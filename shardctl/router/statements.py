"""Statements on shards: names are composed and quoted, values stay parameters.

All of them are to be executed with parameters, if only with none of them, so that psycopg takes
`%%` for a percent sign.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from psycopg import sql

from shardctl.errors import Misused
from shardctl.router.errors import NameRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.router.requests import Parameters

Name = str | sql.Composable
"""A column by its name, or an expression that the application has composed."""
Names = Name | Sequence[Name]
Where = LiteralString | sql.Composable
"""A condition of the application's own, with `%s` or `%(name)s` for values."""

_KEPT = 8192
"""Statements that are kept composed: a few dozen for each of some hundred shards."""
_ANY = "any of shardctl's"
"""Stands for a key's number in a statement that is composed once for all keys."""
_ANY_KEY = _ANY.encode()
_PLACEHOLDER = re.compile(r"%(%|[sbt]|\([^)]*\)[sbt])")


class Text(NamedTuple):
    """An expression as text: unlike psycopg's, it can be a key of a cache."""

    text: str


Term = str | Text
"""A name to be quoted, or an expression."""


@dataclass(frozen=True, slots=True)
class Order:
    """A field that rows are ordered by; NULLs are last, or first where it is `descending`."""

    field: Any
    """A field's name, or an aggregate among the fields of a `scatter`."""
    descending: bool = False
    by_bytes: bool = False
    """Order text by its bytes, as all servers and Python do alike (`COLLATE "C"`)."""


def terms(names: Names) -> tuple[Term, ...]:
    """Take fields as applications give them; a single string is one field."""
    if isinstance(names, str | sql.Composable):
        names = (names,)
    return tuple(
        Text(name.as_string(None)) if isinstance(name, sql.Composable) else _checked(name)
        for name in names
    )


def orders(given: str | Order | Sequence[str | Order] | None) -> tuple[Order, ...]:
    """Take an order as applications give it: a field, with a minus sign in front if descending.

    >>> orders(["-created", "id"])[0]
    Order(field='created', descending=True, by_bytes=False)
    """
    if given is None:
        return ()
    listed = given if isinstance(given, list | tuple) else (given,)
    return tuple(_order(one) for one in listed)


def condition(where: Where | None, parameters: Parameters) -> str | None:
    """Take a condition as text; None is every row.

    As in psycopg, a percent sign is written twice where there are parameters.
    """
    text = where.as_string(None) if isinstance(where, sql.Composable) else where
    return text.replace("%", "%%") if text is not None and parameters is None else text


@lru_cache(maxsize=_KEPT)
def select(
    schema: str,
    table: str,
    fields: tuple[Term, ...],
    where: str | None,
    order: tuple[Order, ...] = (),
    limit: int | None = None,
    group: tuple[Term, ...] = (),
) -> bytes:
    """Compose a SELECT in one shard."""
    whole = sql.SQL("SELECT {} FROM {}").format(_list(fields), _table(schema, table))
    if where is not None:
        whole += sql.SQL(" WHERE {}").format(_raw(where))
    if group:
        whole += sql.SQL(" GROUP BY {}").format(_list(group))
    if order:
        by = [
            sql.SQL("{} DESC" if one.descending else "{}").format(_term(_key(one))) for one in order
        ]
        whole += sql.SQL(" ORDER BY ") + sql.SQL(", ").join(by)
    if limit is not None:
        whole += sql.SQL(" LIMIT {}").format(sql.Literal(limit))
    return whole.as_bytes(None)


@lru_cache(maxsize=_KEPT)
def insert(schema: str, table: str, columns: tuple[str, ...], returning: tuple[Term, ...]) -> bytes:
    """Compose an INSERT of one row, with a parameter for each column in turn."""
    into = sql.SQL("INSERT INTO {} ").format(_table(schema, table))
    if columns:
        marks = sql.SQL(", ").join([sql.SQL("%s")] * len(columns))
        values = sql.SQL("({}) VALUES ({})").format(_list(columns), marks)
    else:
        values = sql.Composed([sql.SQL("DEFAULT VALUES")])
    return (into + values + _back(returning)).as_bytes(None)


@lru_cache(maxsize=_KEPT)
def update(
    schema: str,
    table: str,
    columns: tuple[str, ...],
    where: str,
    named: bool,
    returning: tuple[Term, ...] = (),
) -> bytes:
    """Compose an UPDATE; values come before the condition's parameters, or are `named`."""
    marks = [f"%({assigned(n)})s" if named else "%s" for n in range(len(columns))]
    pairs = [
        sql.SQL("{} = {}").format(_name(column), _raw(mark))
        for column, mark in zip(columns, marks, strict=True)
    ]
    return (
        sql.SQL("UPDATE {} SET {} WHERE {}").format(
            _table(schema, table), sql.SQL(", ").join(pairs), _raw(where)
        )
        + _back(returning)
    ).as_bytes(None)


@lru_cache(maxsize=_KEPT)
def delete(schema: str, table: str, where: str, returning: tuple[Term, ...] = ()) -> bytes:
    """Compose a DELETE."""
    statement = sql.SQL("DELETE FROM {} WHERE {}").format(_table(schema, table), _raw(where))
    return (statement + _back(returning)).as_bytes(None)


@lru_cache(maxsize=_KEPT)
def copy_in(schema: str, table: str, columns: tuple[str, ...]) -> bytes:
    """Compose a COPY of rows into a table; it has no parameters, so a percent sign stands once."""
    names = [sql.Identifier(_checked(column)) for column in columns]
    return (
        sql.SQL("COPY {} ({}) FROM STDIN")
        .format(sql.Identifier(schema, _checked(table)), sql.SQL(", ").join(names))
        .as_bytes(None)
    )


@dataclass(frozen=True, slots=True)
class OnConflict:
    """What `insert_many` does with a row that a unique index already has.

    `fields` are those of the index; `update` are the fields that are then set to the new row's
    values, and without any the new row is left out. Without `fields` any unique index counts.

    Example: `OnConflict("id", update=["caption"])`.
    """

    fields: Names = ()
    update: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse an update without fields, which PostgreSQL cannot do."""
        if self.updated and not self.fields:
            raise Misused(
                "conflict_fields_missing",
                "on_conflict: `update` needs the fields of a unique index",
                hint='name them, such as OnConflict("id", update=["caption"])',
            )

    @property
    def updated(self) -> tuple[str, ...]:
        """The fields that are set to the new row's values."""
        return (self.update,) if isinstance(self.update, str) else tuple(self.update)

    def text(self) -> str:
        """Compose the clause."""
        clause: sql.Composable = sql.SQL(" ON CONFLICT")
        if self.fields:
            clause = clause + sql.SQL(" ({})").format(_list(terms(self.fields)))
        if not self.updated:
            return (clause + sql.SQL(" DO NOTHING")).as_string(None)
        pairs = [
            sql.SQL("{} = EXCLUDED.{}").format(_name(field), _name(field)) for field in self.updated
        ]
        done = sql.SQL(" DO UPDATE SET {}").format(sql.SQL(", ").join(pairs))
        return (clause + done).as_string(None)


@lru_cache(maxsize=256)
def insert_rows(
    schema: str,
    table: str,
    columns: tuple[str, ...],
    count: int,
    conflict: str,
    returning: tuple[Term, ...],
) -> bytes:
    """Compose an INSERT of so many rows, with a parameter for each value in turn."""
    into = sql.SQL("INSERT INTO {} ").format(_table(schema, table))
    if columns:
        row = f"({', '.join(['%s'] * len(columns))})"
        values = sql.SQL("({}) VALUES {}").format(_list(columns), _raw(", ".join([row] * count)))
    else:  # of each column's default
        values = sql.SQL("SELECT FROM pg_catalog.generate_series(1, {})").format(sql.Literal(count))
    return (into + values + _raw(conflict) + _back(returning)).as_bytes(None)


def key_name(number: int) -> str:
    """Name the parameter of a key in `of_keys`."""
    return f"shardctl key {number}"


def of_keys(asked: Sequence[tuple[str, int]], gathering: Gathering) -> bytes:
    """Compose one statement for the rows of keys of a node: pairs of a schema and a key's number.

    The key's field is the first of the gathering's; in front of the fields comes the number.
    """
    return b"\nUNION ALL ".join(
        b"(SELECT %d, %b)" % (number, _of_key(schema, gathering).replace(_ANY_KEY, b"%d" % number))
        for schema, number in asked
    )


@lru_cache(maxsize=_KEPT)
def _of_key(schema: str, gathering: Gathering) -> bytes:
    """Compose what follows a key's number in `of_keys`, for any key."""
    key = f"{quoted(str(gathering.fields[0]))} = %({key_name(0)[:-1]}{_ANY})s"
    where = key if gathering.where is None else f"{key} AND ({gathering.where})"
    one = select(schema, gathering.table, gathering.fields, where, gathering.order, gathering.limit)
    return one.removeprefix(b"SELECT ")


def assigned(position: int) -> str:
    """Name the parameter of a value to be set, where the condition's have names, too."""
    return f"value {position}"


def fetch(schemas: Sequence[str], table: str, fields: tuple[Term, ...], id_field: str) -> bytes:
    """Compose one statement for ids in several shards of a node, with an array for each of these.

    In front of the fields come the shard's position in `schemas`, and the id.
    """
    return b"\nUNION ALL ".join(
        b"SELECT %d, %b" % (position, _by_ids(schema, table, fields, id_field))
        for position, schema in enumerate(schemas)
    )


@dataclass(frozen=True, slots=True)
class Gathering:
    """What is asked of every shard, for `gather`."""

    table: str
    fields: tuple[Term, ...]
    where: str | None
    order: tuple[Order, ...]
    limit: int | None
    group: tuple[Term, ...] = ()

    @property
    def columns(self) -> tuple[Term, ...]:
        """The fields, then those by which it is ordered and that are not among them."""
        keys = [key for order in self.order if (key := _key(order)) not in self.fields]
        return (*self.fields, *dict.fromkeys(keys))

    @property
    def keys(self) -> tuple[int, ...]:
        """The positions of the columns by which it is ordered."""
        columns = self.columns
        return tuple(columns.index(_key(order)) for order in self.order)


def gather(schemas: Sequence[str], asked: Gathering) -> bytes:
    """Compose one statement for several shards of a node: ordered, and no more than the limit.

    The limit is in every sub-select, too, so that no shard reads more rows than needed.
    """
    columns, order, limit = asked.columns, asked.order, asked.limit
    parts = [
        select(schema, asked.table, columns, asked.where, order, limit, asked.group)
        for schema in schemas
    ]
    if len(parts) == 1:
        return parts[0]
    whole = b"\nUNION ALL ".join(b"(%b)" % part for part in parts)
    if order:
        by = [
            b"%d DESC" % (position + 1) if one.descending else b"%d" % (position + 1)
            for one, position in zip(order, asked.keys, strict=True)
        ]
        whole += b"\nORDER BY " + b", ".join(by)
    return whole + (b"" if limit is None else b" LIMIT %d" % limit)


def search_path(schema: str) -> bytes:
    """Compose what lets unqualified names mean a shard's, until the transaction ends."""
    # The shard's schema alone: behind it, a table of the same name would be written into where
    # the shard has been fenced. Without parameters, so a percent sign stands once.
    return sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)).as_bytes(None)


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


def number(limit: int | None) -> int | None:
    """Check a limit, which is part of the statement; raises TypeError unless it is a number."""
    return None if limit is None else operator.index(limit)


@lru_cache(maxsize=_KEPT)
def _by_ids(schema: str, table: str, fields: tuple[Term, ...], id_field: str) -> bytes:
    """Compose what follows a shard's position in `fetch`."""
    return (
        sql.SQL("{} FROM {} WHERE {} = ANY (%s)")
        .format(_list((id_field, *fields)), _table(schema, table), _name(id_field))
        .as_bytes(None)
    )


def _order(given: Any) -> Order:
    if isinstance(given, str):
        return Order(given.removeprefix("-"), given.startswith("-"))
    return given if isinstance(given, Order) else Order(given)


def _back(returning: tuple[Term, ...]) -> sql.Composable:
    return sql.SQL(" RETURNING {}").format(_list(returning)) if returning else sql.SQL("")


def _key(order: Order) -> Term:
    """Give the column that rows are ordered by."""
    if not order.by_bytes:
        return _checked(order.field)
    return Text(sql.SQL('{} COLLATE "C"').format(_name(order.field)).as_string(None))


def _table(schema: str, table: str) -> sql.Identifier:
    return sql.Identifier(schema.replace("%", "%%"), _checked(table).replace("%", "%%"))


def _list(fields: Iterable[Term]) -> sql.Composed:
    return sql.SQL(", ").join([_term(field) for field in fields])


def _term(term: Term) -> sql.Composable:
    return _raw(term.text) if isinstance(term, Text) else _name(term)


def quoted(name: str) -> str:
    """Quote a name, for a text with parameters."""
    return _name(name).as_string(None)


def _name(name: str) -> sql.Identifier:
    return sql.Identifier(_checked(name).replace("%", "%%"))


def _checked(name: object) -> str:
    if not isinstance(name, str) or not name or "\0" in name:
        raise NameRefused(name)
    return name


def _raw(text: str) -> sql.SQL:
    # What the application has written or composed itself, never a value or a name from outside.
    return sql.SQL(text)
