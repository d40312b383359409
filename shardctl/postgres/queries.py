"""SQL in files: named blocks, each with a comment line, composed with psycopg.sql."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Any, LiteralString, cast

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    Connection = psycopg.Connection[Any]

_BLOCK = re.compile(r"^-- name: (\w+)\n-- .+\n((?:(?!^-- name: ).*\n?)*)", re.MULTILINE)


def load(package: str, file: str) -> dict[str, sql.SQL]:
    """Read the named blocks of a `.sql` file that ships with `package`.

    A block is `-- name: NAME`, a comment line that describes what it is, and the statement.
    """
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    blocks = {match[1]: match[2].strip() for match in _BLOCK.finditer(text)}
    # A file of the package is as literal as a string in the code.
    return {name: sql.SQL(cast("LiteralString", block)) for name, block in blocks.items()}


def literals(**values: object) -> dict[str, sql.Literal]:
    """Give values as parts of a statement, by name."""
    return {name: sql.Literal(value) for name, value in values.items()}


def identifiers(**names: str) -> dict[str, sql.Identifier]:
    """Give names as parts of a statement, by name."""
    return {name: sql.Identifier(value) for name, value in names.items()}


def one(
    session: Connection,
    statement: sql.SQL | sql.Composed | LiteralString,
    given: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Give the row of a statement that always has one, such as a SELECT without FROM."""
    row: tuple[Any, ...] | None = session.execute(statement, given).fetchone()
    if row is None:  # pragma: no cover  # the statement is of another kind
        raise AssertionError(statement)
    return row


def rows_of_last(session: Connection, message: sql.Composed | bytes) -> list[Any]:
    """Send several statements as one message, and give the rows of the last, if it has any.

    `session` is in autocommit. A statement that fails ends the message, and the transaction that
    was open then is rolled back.
    """
    return rows_of_all(session, message)[-1]


def rows_of_all(session: Connection, message: sql.Composed | bytes) -> list[list[Any]]:
    """Do what `rows_of_last` does, and give the rows of every statement.

    Each sees what was committed before it began, and not only before the message.
    """
    try:
        cursor = session.execute(message)
    except psycopg.Error:
        if session.info.transaction_status is TransactionStatus.INERROR:
            session.rollback()
        raise
    found = []
    while True:
        found.append(cursor.fetchall() if cursor.description else [])
        if not cursor.nextset():
            return found
