"""Statements on shards: names are composed and quoted, values stay parameters.

They are composed once for all shards, with a NUL in the place of the schema, which `of_shard` puts
there. All of them are to be executed with parameters, if only with none of them, so that psycopg
takes `%%` for a percent sign.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, LiteralString, NamedTuple

from psycopg import sql

from shardctl.router.errors import NameRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Name = str | sql.Composable
"""A column by its name, or an expression that the application has composed."""
Names = Name | Sequence[Name]
Where = LiteralString | sql.Composable
"""A condition of the application's own, with `%s` or `%(name)s` for values."""

KEPT = 1024
"""Statements that are kept composed; each is one for all shards."""
_SCHEMA = "\0"
"""What the schema replaces: no name and no SQL can have it."""
_PARAMETERS = 65_535
"""The most that a statement can have."""
_LONGEST_S = 2_000_000.0
"""A server's timeout has 31 bits for its milliseconds."""


class Text(NamedTuple):
    """An expression as text: unlike psycopg's, it can be a key of a cache."""

    text: str


Term = str | Text
"""A name to be quoted, or an expression."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What `scatter` computes of the rows of all shards, for its `fields`.

    >>> Aggregate.count(), Aggregate.max("created_at")
    (Aggregate(function='count', field=None), Aggregate(function='max', field='created_at'))
    """

    function: Literal["count", "sum", "min", "max"]
    field: str | None

    @classmethod
    def count(cls, field: str | None = None) -> Aggregate:
        """Count rows, or those whose field is not NULL."""
        return cls("count", field)

    @classmethod
    def sum(cls, field: str) -> Aggregate:
        """Add numbers; None if there are none, as in SQL."""
        return cls("sum", field)

    @classmethod
    def min(cls, field: str) -> Aggregate:
        """Find the smallest value that is not NULL, of a type that `scatter` can order by."""
        return cls("min", field)

    @classmethod
    def max(cls, field: str) -> Aggregate:
        """Find the largest."""
        return cls("max", field)

    @property
    def term(self) -> Text:
        """What to select in each shard."""
        of = sql.SQL("*") if self.field is None else identifier(self.field)
        return Text(sql.SQL("{}({})").format(sql.SQL(self.function), of).as_string(None))


Parameters = Sequence[Any] | Mapping[str, Any] | None
Row = tuple[Any, ...]


class Answer(NamedTuple):
    """A statement's result: all of its rows, how many it touched, and its columns' types."""

    rows: list[Row]
    touched: int
    types: tuple[int, ...] = ()
    """OIDs."""


class Order(NamedTuple):
    """A field that rows are ordered by; NULLs are last, or first where it is `descending`."""

    field: str
    descending: bool = False


Fields = Name | Aggregate | Sequence[Name | Aggregate]


def terms(names: Fields) -> tuple[Term, ...]:
    """Take fields as applications give them; a single string is one field."""
    # Most are lists of strings: what they are is quickly asked, and they are checked when a
    # statement is composed of them.
    single = type(names) is not list and isinstance(names, (str, sql.Composable, Aggregate))
    listed: Any = (names,) if single else names
    return tuple([one if type(one) is str else _taken(one) for one in listed])


def _taken(name: Name | Aggregate) -> Term:
    if isinstance(name, Aggregate):
        return name.term
    if isinstance(name, sql.Composable):
        return Text(_whole(name.as_string(None)))
    return _checked(name)


def orders(given: str | Sequence[str] | None) -> tuple[Order, ...]:
    """Take an order as applications give it: a field, with a minus sign in front if descending.

    >>> orders(["-created", "id"])[0]
    Order(field='created', descending=True)
    """
    if given is None:
        return ()
    listed = (given,) if isinstance(given, str) else given
    return tuple(Order(_checked(one.removeprefix("-")), one.startswith("-")) for one in listed)


def condition(where: Where | None, parameters: Parameters) -> str | None:
    """Take a condition as text; None is every row.

    As in psycopg, a percent sign is written twice where there are parameters.
    """
    if where is None:
        return None
    text = _whole(where if isinstance(where, str) else where.as_string(None))
    return text.replace("%", "%%") if parameters is None else text


@cache  # no more than there are shards
def _quoted(schema: str) -> bytes:
    return identifier(schema).as_bytes(None)


def of_shard(statement: bytes, schema: str) -> bytes:
    """Make a statement one of a shard, by its schema."""
    return statement.replace(b"\0", _quoted(schema))


@lru_cache(maxsize=KEPT)
def select(
    table: str,
    fields: tuple[Term, ...],
    where: str | None,
    order: tuple[Order, ...] = (),
    limit: int | None = None,
) -> bytes:
    """Compose a SELECT in one shard."""
    whole = sql.SQL("SELECT {} FROM {}").format(_list(fields), _table(table))
    if where is not None:
        whole += sql.SQL(" WHERE {}").format(raw(where))
    if order:
        by = [
            sql.SQL("{} DESC" if one.descending else "{}").format(identifier(one.field))
            for one in order
        ]
        whole += sql.SQL(" ORDER BY ") + sql.SQL(", ").join(by)
    if limit is not None:
        whole += sql.SQL(" LIMIT {}").format(sql.Literal(limit))
    return whole.as_bytes(None)


@lru_cache(maxsize=KEPT)
def insert(table: str, columns: tuple[str, ...], returning: tuple[Term, ...]) -> bytes:
    """Compose an INSERT of one row, with a parameter for each column in turn."""
    into = sql.SQL("INSERT INTO {} ").format(_table(table))
    if columns:
        marks = sql.SQL(", ").join([sql.SQL("%s")] * len(columns))
        values = sql.SQL("({}) VALUES ({})").format(_list(columns), marks)
    else:
        values = sql.Composed([sql.SQL("DEFAULT VALUES")])
    return (into + values + _returning(returning)).as_bytes(None)


def insert_rows(
    schema: str,
    table: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    on_conflict: str | None,
) -> Iterator[tuple[bytes, list[Any]]]:
    """Compose INSERTs of rows, with what to do with those that are there already, and values."""
    names = sql.SQL("INSERT INTO {} ({}) VALUES ").format(_table(table), _list(columns))
    into = of_shard(names.as_bytes(None), schema)
    row = sql.SQL("({})").format(sql.SQL(", ").join([sql.SQL("%s")] * len(columns))).as_bytes(None)
    conflict = b"" if on_conflict is None else b" ON CONFLICT " + on_conflict.encode()
    size = _PARAMETERS // len(columns)
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        values = b", ".join([row] * len(some))
        yield into + values + conflict, list(itertools.chain.from_iterable(some))


def copy(schema: str, table: str, columns: tuple[str, ...]) -> bytes:
    """Compose a COPY of rows into one shard."""
    # Without parameters, so a percent sign stands once.
    names = sql.SQL(", ").join(map(sql.Identifier, map(_checked, columns)))
    into = sql.Identifier(schema, _checked(table))
    return sql.SQL("COPY {} ({}) FROM STDIN").format(into, names).as_bytes(None)


@lru_cache(maxsize=KEPT)
def update(
    table: str,
    columns: tuple[str, ...],
    where: str,
    named: bool,
    returning: tuple[Term, ...] = (),
) -> bytes:
    """Compose an UPDATE; values come before the condition's parameters, or are `named`."""
    marks = [f"%({assigned(n)})s" if named else "%s" for n in range(len(columns))]
    pairs = [
        sql.SQL("{} = {}").format(identifier(column), raw(mark))
        for column, mark in zip(columns, marks, strict=True)
    ]
    setting, table_name = sql.SQL(", ").join(pairs), _table(table)
    whole = sql.SQL("UPDATE {} SET {} WHERE {}").format(table_name, setting, raw(where))
    return (whole + _returning(returning)).as_bytes(None)


@lru_cache(maxsize=KEPT)
def delete(table: str, where: str, returning: tuple[Term, ...] = ()) -> bytes:
    """Compose a DELETE."""
    whole = sql.SQL("DELETE FROM {} WHERE {}").format(_table(table), raw(where))
    return (whole + _returning(returning)).as_bytes(None)


def with_values(values: Mapping[str, Any], parameters: Parameters) -> Parameters:
    """Give the parameters of an `update`."""
    if isinstance(parameters, Mapping):
        return {**parameters, **{assigned(n): one for n, one in enumerate(values.values())}}
    return (*values.values(), *(parameters or ()))


def assigned(position: int) -> str:
    """Name the parameter of a value to be set, where the condition's have names, too."""
    return f"value {position}"


@lru_cache(maxsize=KEPT)
def begin(schema: str) -> bytes:
    """Compose what begins a transaction in which unqualified names mean a shard's."""
    # The shard's schema alone: behind it, a table of the same name would be written into where
    # the shard has been fenced. Without parameters, so a percent sign stands once.
    path = sql.SQL("BEGIN; SET LOCAL search_path TO {}").format(sql.Identifier(schema))
    return path.as_bytes(None)


def begin_until(until: float) -> bytes:
    """Compose what begins a transaction whose statements the server ends at a time."""
    left_ms = max(1, math.ceil(min(until - time.monotonic(), _LONGEST_S) * 1000))
    return b"BEGIN; SET LOCAL statement_timeout TO %d" % left_ms


@lru_cache(maxsize=KEPT)
def within(schema: str, parameters: bool) -> bytes:
    """Compose what lets unqualified names mean a shard's in the rest of the same message.

    PostgreSQL takes the statements of one message for a transaction. `parameters` if psycopg is to
    put some in, and so takes `%%` for a percent sign.
    """
    name = schema.replace("%", "%%") if parameters else schema
    return sql.SQL("SET LOCAL search_path TO {}; ").format(sql.Identifier(name)).as_bytes(None)


def number(limit: int | None) -> int | None:
    """Check a limit, which is part of the statement; raises TypeError unless it is a number."""
    return None if limit is None else operator.index(limit)


def _returning(fields: tuple[Term, ...]) -> sql.Composed:
    return sql.SQL(" RETURNING {}" if fields else "").format(*([_list(fields)] if fields else []))


def _table(table: str) -> sql.Composed:
    return sql.SQL(_SCHEMA + ".{}").format(identifier(table))


def _list(fields: Iterable[Term]) -> sql.Composed:
    return sql.SQL(", ").join([_term(field) for field in fields])


def _term(term: Term) -> sql.Composable:
    return raw(term.text) if isinstance(term, Text) else identifier(term)


def identifier(name: str) -> sql.Identifier:
    """Quote a name; raises NameRefused."""
    return sql.Identifier(_checked(name).replace("%", "%%"))


def _checked(name: object) -> str:
    if not isinstance(name, str) or not name or "\0" in name:
        raise NameRefused(name)
    return name


def _whole(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"SQL with a NUL: {text!r}")
    return text


def raw(text: str) -> sql.SQL:
    """Take what the application has composed itself, never a value or a name from outside."""
    return sql.SQL(text)
