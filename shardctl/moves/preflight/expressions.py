"""Expressions of moved tables that a search_path explains: what applies a stream has none.

Checks (also of domains), generated columns, indexes and partition keys are computed again on the
target, where `search_path` is empty. Whether a function in one of them fails there is tried on the
source, with a row, as `database.user`: only where that role and superusers own all of the code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, LiteralString, cast

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.moves.preflight import replication
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

_ATTEMPTS = 20
"""In how many tables a row is looked for, with which the same expression can be tried."""
_UNKNOWN_NAMES = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
)


@dataclass(frozen=True, slots=True)
class Expressions:
    """Functions in expressions, with their tables: those that fail, and those that were not tried.

    The latter are in tables without rows, or of another role than ours.
    """

    failing: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()


def look(context: Context) -> Expressions:
    """Compute each such expression for a row, once for all tables that have it.

    Raises Unknown of a source that is too old.
    """
    replication.require_streams(context)
    given = {"schemas": list(context.plan.schemas)}
    failing: list[str] = []
    untried: dict[tuple[str, str], str] = {}
    proved: set[tuple[str, str]] = set()
    attempts: Counter[tuple[str, str]] = Counter()
    # The session's search_path is pg_catalog, and it cannot write.
    asked = QUERIES["expressions"].format(held=catalog.QUERIES["held"])
    found_there = context.session.execute(asked, given)
    for table, expression, function, condition, ours in found_there:
        one = (expression, function)
        if not ours:
            untried.setdefault(one, f"{function} in {table}")
            continue
        attempts[one] += 1
        if one in proved or attempts[one] > _ATTEMPTS:
            continue  # shards have the same tables
        statement = QUERIES["evaluate"].format(
            expression=sql.SQL(cast("LiteralString", expression)),  # as the server wrote it
            table=sql.SQL(cast("LiteralString", table)),
            condition=sql.SQL(cast("LiteralString", condition)),
        )
        found = None
        try:
            found = context.session.execute(statement).fetchone()
        except _UNKNOWN_NAMES as error:
            failing.append(f"{function} in {table} ({reason_of(error)})")
            continue
        except (psycopg.DataError, psycopg.IntegrityError):
            pass  # of that row; another table's may do
        if found is None:
            untried.setdefault(one, f"{function} in {table}")
        else:
            proved.add(one)
    return Expressions(
        tuple(failing), tuple(name for one, name in untried.items() if one not in proved)
    )


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse functions that fail without a search_path: the stream would stop at the first row."""
    if failing := context.need(look).failing:
        yield SourceUnfit(
            context.plan.source,
            "search_path",
            "checks, indexes, generated columns or partition keys call functions that rely on "
            "search_path: "
            f"{listed(failing)}",
            hint="ALTER FUNCTION ... SET search_path = SCHEMA, or write the schema into the "
            "function's text",
        )


def notes(context: Context) -> Iterator[str]:
    """Say which functions could not be tried."""
    if untried := context.need(look).untried:
        yield (
            "preflight could not try whether these functions of checks, indexes, generated columns "
            "and partition keys rely on search_path, because their tables have no row, or because "
            f"another role than {context.topology.database.user} owns them: "
            f"{listed(untried)}"
        )
