"""Ask a standby: what replay cancels is asked again, be it a question or a login."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import psycopg

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Callable

Read = TypeVar("Read")

_ATTEMPTS = 50
_CONFLICT = "conflict with recovery"
"""What a server says that speaks English; libpq keeps the SQLSTATE of a login that failed."""


def again(read: Callable[[], Read]) -> Read:
    """Give what is read from a standby, also where replay cancels that on its way.

    `read` may be a login, or log in where its session was ended. Raises what it raises, and the
    conflict when it happens again and again.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except (psycopg.Error, ShardctlError) as error:
            if not cancelled(error):
                raise
    return read()


def cancelled(error: psycopg.Error | ShardctlError) -> bool:
    """Tell whether replay was in the way, and nothing else was wrong."""
    if isinstance(error, ShardctlError):
        return all(_CONFLICT in part.message for part in error.parts())
    return isinstance(error, psycopg.errors.SerializationFailure) or _CONFLICT in str(error)
