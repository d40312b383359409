"""Rows as an application wants them: psycopg's row factories, for part of an answer's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import pq

if TYPE_CHECKING:
    from shardctl.router.requests import Answer

Factory = Callable[[Any], Callable[[Sequence[Any]], Any]]
"""A row factory of psycopg's, such as `dict_row` or `class_row(Photo)`."""


class Column(NamedTuple):
    """A column of an answer, as a row factory sees it."""

    name: str
    type_code: int


class Described:
    """What row factories read of a cursor: the names and types of its columns."""

    _encoding = "utf-8"

    def __init__(self, columns: Sequence[Column]) -> None:
        self.description = list(columns)
        self.pgresult = self
        self.status = pq.ExecStatus.TUPLES_OK
        self.nfields = len(self.description)

    def fname(self, position: int) -> bytes:
        """Give a column's name."""
        return self.description[position].name.encode()


def maker(
    factory: Factory | None, answer: Answer, first: int = 0, count: int | None = None
) -> Callable[[Sequence[Any]], Any]:
    """Give what makes a row of an answer's values, of `count` columns from `first` on.

    Without a factory rows are tuples.
    """
    last = len(answer.types) if count is None else first + count
    if factory is None:
        return tuple if first == 0 and count is None else lambda row: tuple(row[first:last])
    columns = [*map(Column, answer.names, answer.types)][first:last]
    make = factory(Described(columns))
    return lambda row: make(row[first:last])
