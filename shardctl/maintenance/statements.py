"""The operator's text for every shard, as statements that shardctl can run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.errors import Misused
from shardctl.postgres import split
from shardctl.postgres.masking import without_passwords

if TYPE_CHECKING:
    from shardctl.postgres.split import Statement

_CONTROL = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "ABORT", "END"})
_CONTROL_PAIRS = frozenset({("START", "TRANSACTION"), ("PREPARE", "TRANSACTION")})
_STREAM = re.compile(r"\b(stdin|stdout)\b", re.IGNORECASE)
_TOLD = 1000


def parse(text: str) -> tuple[Statement, ...]:
    """Split a text into its statements; raises statement_invalid.

    >>> [s.text for s in parse("SELECT 1; SELECT ';'")]
    ['SELECT 1', "SELECT ';'"]
    """
    if "\0" in text:
        raise Misused("statement_invalid", "the statement contains a zero byte", hint="remove it")
    found = tuple(split.split(text))
    if not found:
        raise Misused(
            "statement_invalid",
            "there is no statement",
            hint="specify one, such as 'SELECT count(*) FROM photos'",
        )
    for statement in found:
        _require_fit(statement)
    return found


def _require_fit(statement: Statement) -> None:
    first, *rest = statement.first_words or ("",)
    where = f"line {statement.line}"
    if statement.text.startswith("\\"):
        raise Misused(
            "statement_invalid",
            f"{where}: {statement.text.split()[0]} is a psql command, not a statement",
            hint="run it in psql: `shardctl route` shows the connection string",
        )
    if first in _CONTROL or (first, *rest) in _CONTROL_PAIRS:
        raise Misused(
            "statement_invalid",
            f"{where}: {first} is not supported: shardctl runs one transaction in each shard",
            hint="remove it",
        )
    if first == "COPY" and _STREAM.search(statement.text):
        raise Misused(
            "statement_invalid",
            f"{where}: COPY with STDIN or STDOUT is not supported",
            hint="use SELECT with -o tsv, or INSERT",
        )


def for_log(text: str) -> str:
    """Give the text for logs and events: without passwords, and not too long.

    >>> for_log("ALTER ROLE ann PASSWORD 'it''s'; SELECT 1")
    "ALTER ROLE ann PASSWORD '***'; SELECT 1"
    """
    masked = without_passwords(text.strip())
    return masked if len(masked) <= _TOLD else f"{masked[:_TOLD]}..."
