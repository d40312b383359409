"""Ask a standby: what replay cancels is asked again, be it a question or a login."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, TypeVar

import psycopg

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Callable

Read = TypeVar("Read")

_ATTEMPTS = 50
_WITHIN_S = 2.0
"""Attempts go on for so long and so often: quick ones may all fall into one busy moment."""
_CONFLICT = "conflict with recovery"
"""What a server shows that speaks English; libpq keeps the SQLSTATE of a login that failed."""
_LOST = "consuming input failed: server closed the connection unexpectedly"
"""psycopg's text for an open session where that text was lost: replay ends sessions, too.

A server that has died rejects the next login, which is another error.
"""


def again(read: Callable[[], Read]) -> Read:
    """Give what is read from a standby, also where replay cancels that in transit.

    `read` may be a login, or log in where its session was ended. Raises what it raises, and the
    conflict when it happens again and again.
    """
    until = time.monotonic() + _WITHIN_S
    for attempt in itertools.count(1):
        try:
            return read()
        except (psycopg.Error, ShardctlError) as error:
            if not cancelled(error) or (attempt >= _ATTEMPTS and time.monotonic() > until):
                raise
    raise AssertionError  # it counts without end


def cancelled(error: psycopg.Error | ShardctlError) -> bool:
    """Return whether replay was in the way, and nothing else was wrong."""
    if isinstance(error, ShardctlError):
        return all(_CONFLICT in part.message for part in error.parts())
    if isinstance(error, psycopg.errors.SerializationFailure):
        return True
    return any(words in str(error) for words in (_CONFLICT, _LOST))
