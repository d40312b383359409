"""Statements that a pooler has handed to no server: they are sent again, as after a wait.

PgBouncer looks for a server when the first packet of a transaction comes. Where its pool has none
and the last login to the node failed, it disconnects the client at once, with one text that is
written at no other place (`check_fast_fail`, which only `find_server` calls). A client that has a
server never comes there, and keeps its server to the end of the transaction. So a transaction
whose first statement gets this error has reached no server, and nothing of it was done: PgBouncer
might as well have let the client wait, as it does while a login has not failed yet.

A login fails for a moment when a client cancels a statement for which PAUSE waits: PgBouncer
connects to the node to carry the request there, and the pause ends that connection.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

from shardctl.router.requests import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.router.events import Span
    from shardctl.router.known import Known
    from shardctl.router.requests import Answer, Execute, Plan, Result

_FIRST_PAUSE_S, _PAUSES_GROW, _LAST_PAUSE_S = 0.01, 1.5, 0.2
"""Between questions: a cutover takes a tenth of a second, and a node that is gone much longer."""
_TEXT = "server login has been failing, try again later (server_login_retry)"
"""Up to PgBouncer 1.23."""
_NEWER_TEXT = "server login has been failing, cached error: "
"""From 1.24 on; the node's last error follows, and is cut off at 127 bytes."""


def is_refusal(error: errors.ProtocolViolation) -> bool:
    """Return whether a pooler ended a connection because it had no server for a new transaction.

    A function of the application's can raise the same text, but not as FATAL.
    """
    reported = error.diag.message_primary or ""
    same = reported == _TEXT or reported.startswith(_NEWER_TEXT)
    return same and error.diag.severity == "FATAL"


def has_text(text: str) -> bool:
    """Return whether an error's text has that of such a refusal, in any driver's words."""
    return _TEXT in text or _NEWER_TEXT in text


def is_definite(error: psycopg.Error) -> bool:
    """Return whether the server reported an error after which the session goes on.

    After any other, an answer may have been lost: a COMMIT may have been done.
    """
    return (error.diag.severity_nonlocalized or error.diag.severity) == "ERROR"


def is_lost(error: BaseException | None) -> bool:
    """Return whether a connection broke off, or a server ended it."""
    return isinstance(error, psycopg.OperationalError) and not is_definite(error)


def pauses() -> Iterator[float]:
    """Give how many seconds to wait before each next attempt."""
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * _PAUSES_GROW, _LAST_PAUSE_S)


def outwaited(
    known: Known,
    attempt: Callable[[float | None], Plan[Result]],
    until: float | None = None,
    span: Span | None = None,
) -> Plan[Result]:
    """Run a plan; again while its pooler has no server, for as long as patience lasts.

    `attempt` has to begin a transaction, and to raise nothing of what comes after its first
    statement. Its argument is how many seconds it may wait for a connection; None is the pool's
    timeout. `until` is on `time.monotonic`. Raises the last attempt's error.
    """
    seconds: float | None = None
    deadline: float | None = None
    waits = pauses()
    while True:
        try:
            return (yield from attempt(seconds))
        except errors.ProtocolViolation as error:
            now = time.monotonic()
            if deadline is None:
                deadline = now + known.patience_s
                deadline = deadline if until is None else min(deadline, until)
            if not is_refusal(error) or now >= deadline:
                raise
        if span is not None:
            span.count()
        yield Wait(min(next(waits), deadline - now))
        seconds = max(0.0, deadline - time.monotonic())


def read(known: Known, request: Execute, span: Span) -> Plan[Answer]:
    """Run one statement that only reads; once more where its connection turns out to be lost."""
    try:
        return (yield from execute(known, request, span))
    except psycopg.OperationalError as error:
        refused = isinstance(error, errors.ProtocolViolation) and is_refusal(error)
        if refused or not is_lost(error):
            raise
    span.count()
    return (yield from execute(known, request, span))


def execute(known: Known, request: Execute, span: Span | None = None) -> Plan[Answer]:
    """Run one statement in a transaction of its own; again while its pooler has no server."""

    def attempt(seconds: float | None) -> Plan[Answer]:
        answer: Answer = yield request if seconds is None else request._replace(seconds=seconds)
        return answer

    return (yield from outwaited(known, attempt, request.until, span))
