"""Errors that say that nothing was done: a pooler's refusal, and the fence's.

PgBouncer looks for a server when the first packet of a transaction comes. Where its pool has none
and the last login to the node failed, it disconnects the client at once, with one text that is
written at no other place (`check_fast_fail`, which only `find_server` calls). A client that has a
server never comes there, and keeps its server to the end of the transaction. So a transaction
whose first statement gets this error has reached no server, and nothing of it was done: PgBouncer
might as well have let the client wait, as it does while a login has not failed yet.

A login fails for a moment when a client cancels a statement for which PAUSE waits: PgBouncer
connects to the node to carry the request there, and the pause ends that connection.

A move renames the shard's schema on its source node. A statement there then fails with 42P01
for a table, 3F000 for a schema, with nothing written. A table that the application never created
gives the same codes, so the node is asked whether the schema exists.

A node to which the shard is about to come back has a copy under the schema's own name, closed
until the cutover: without USAGE, a statement there fails with 42501. Roles get that for other
reasons, too, so the node is asked whether this one may use the schema.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from shardctl.libpq import reason_of
from shardctl.router.errors import ShardMoved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FENCED = (errors.UndefinedTable, errors.InvalidSchemaName, errors.InsufficientPrivilege)
"""42P01, 3F000 and 42501."""
FENCED_WITHIN = (
    *FENCED,
    errors.UndefinedFunction,
    errors.UndefinedObject,
    errors.InFailedSqlTransaction,
)
"""And what unqualified names of other things give, once the schema is not on the path any more; and
what comes after one of these that was caught.
"""
REPEATABLE = (ShardMoved, errors.SerializationFailure, errors.DeadlockDetected)
"""After which a transaction has written nothing, and may succeed when it runs again."""

_FIRST_PAUSE_S, _PAUSES_GROW, _LAST_PAUSE_S = 0.01, 1.5, 0.2
"""Between questions: a cutover takes a tenth of a second, and a node that is gone much longer."""
_TEXT = "server login has been failing, try again later (server_login_retry)"
"""Up to PgBouncer 1.23."""
_NEWER_TEXT = "server login has been failing, cached error: "
"""From 1.24 on; the node's last error follows, and is cut off at 127 bytes."""


class Look(Enum):
    """The result of searching for shards that a statement did not find."""

    STANDS = auto()
    """Their schemas exist: something else is missing, or the fence was just removed."""
    SETTLED = auto()
    """They were fenced, and each is on a node now: another one, or the same."""
    AWAY = auto()
    """One is still fenced on every node after the router's patience."""


def is_refusal(error: errors.ProtocolViolation) -> bool:
    """Return whether a pooler ended a connection because it had no server for a new transaction.

    A function of the application's can raise the same text, but not as FATAL.
    """
    reported = error.diag.message_primary or ""
    same = reported == _TEXT or reported.startswith(_NEWER_TEXT)
    return same and error.diag.severity == "FATAL"


def is_of(error: BaseException | None, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether a transaction's error, or a cause of it, is of one of these kinds."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        if isinstance(error, BaseExceptionGroup):  # of a TaskGroup
            return any(is_of(one, kinds) for one in error.exceptions)
        error = error.__cause__  # SQLAlchemy and Django raise errors of their own from psycopg's
    return False


def pauses() -> Iterator[float]:
    """Give how many seconds to wait before each next attempt."""
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * _PAUSES_GROW, _LAST_PAUSE_S)


def reasons(outcomes: Iterable[Any]) -> list[str]:
    """Give the reason of each node that did not return the map."""
    return [
        reason_of(one)
        if isinstance(one, psycopg.Error)
        else str(one or "`shardctl init` has not finished")
        for one in outcomes
    ]
