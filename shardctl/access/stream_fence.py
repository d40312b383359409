"""The fence of a streamed move: locks against writers, then the rename, then a mark in the stream.

A rename alone is no fence for a stream: a writer that commits after it is published under the
retired name, and its rows never arrive. With the locks, no write is open when the mark is made,
so what the target has when it sees the mark is all that there is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from shardctl.access import fence, structure_digest
from shardctl.access.fence import QUERIES
from shardctl.postgres import blocking, queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from shardctl.postgres.connection import Connection


MARK = "fence"
"""What the row in `shardctl.stream` says that the fence commits."""

_QUICK_MS = 50
"""A client that wants a table that the fence wants waits behind it for so long."""
_TABLE_MS = 0.1
_REHEARSED = -1
"""The attempt of a mark that is never committed."""
_TRANSIENT = (*fence.TRANSIENT, psycopg.errors.QueryCanceled)


class Left(NamedTuple):
    """What is found behind the fence."""

    busy: bool
    """Whether sessions that write there, or make something, can still change it."""
    unlogged: bool
    changing: bool
    """Whether sessions have changed something there, without a lock, and have not committed."""
    digest: str


@dataclass(frozen=True, slots=True)
class Known:
    """What a shard is known to be before the fence; false where that does not help behind it."""

    versions: str = ""
    looks: tuple[bytes, ...] = ()
    """What asks for them behind the fence: the schemas have other names then, and the same OIDs."""

    def __bool__(self) -> bool:
        """Return whether they can be compared."""
        return bool(self.looks)

    def untouched(self, found: Sequence[Sequence[Sequence[Any]]]) -> str | None:
        """Return up to where the WAL is on the disk, if `left` can find nothing, and no new digest.

        `found` has the rows of the looks. They look for locks before they read the versions: once
        no session holds a lock, the versions show everything that was made.
        """
        [(held,)], [(now,)], [(lsn,)] = found
        return None if held or now != self.versions else str(lsn)


def known(session: Connection, schemas: Sequence[str]) -> tuple[str, Known]:
    """Give the structure's digest before the fence, and what is compared behind it.

    That is false where `left` would find something already.
    """
    digest, versions = structure_digest.known(session, schemas)
    # Asked afterwards: what ends in between shows in the versions.
    if structure_digest.changing(session, schemas) or fence.unlogged(session, schemas):
        return digest, Known()
    listed = sql.Literal(list(versions.namespaces))
    looks = [QUERIES["is_held"].format(namespaces=listed), versions.query, QUERIES["position"]]
    # Composed here, while no client waits.
    found = Known(versions.total, tuple(look.as_bytes(session) for look in looks))
    untouched(session, found)  # what it reads is in the session's caches then
    return digest, found


def untouched(session: Connection, known: Known) -> str | None:
    """Ask that of a session."""
    return known.untouched(queries.rows_of_all(session, b";\n".join(known.looks)))


def left(session: Connection, move: str, schemas: Sequence[str]) -> Left:
    """Look behind the fence in one message; the digest is of the time after the other looks."""
    looks = [
        *fence.looks(move),
        structure_digest.changing_query(schemas),
        structure_digest.query(session, schemas),
    ]
    makers, writers, unlogged, changing, digest = queries.rows_of_all(
        session, sql.SQL(";\n").join(looks)
    )
    return Left(bool(makers or writers), bool(unlogged), bool(changing), str(digest[0][0]))


def prepare(session: Connection, move: str, *, revision: int) -> None:
    """Let the session plan the fence before clients wait, where it may make a function for that.

    `revision` is the journal's. Raises not_at_cutover.
    """
    try:
        session.execute(QUERIES["function"].format(body=_body(move)))
    except psycopg.errors.InsufficientPrivilege:  # to make temporary objects in the database
        return
    given = _given(
        attempt=_REHEARSED, revision=revision, timeout_ms=_QUICK_MS, not_after=None, for_real=False
    )
    call = QUERIES["call"].format(**given)
    queries.rows_of_last(session, QUERIES["rehearsal"].format(put_up=call))


def _body(move: str) -> sql.Composed:
    names = {"revision": sql.SQL("from_revision"), "lock_timeout": sql.SQL("quick")}
    to_fenced = QUERIES["to_fenced"].format(move=sql.Literal(move), **names)
    renaming = fence.renaming(move, wanted=sql.SQL("for_real"), not_after=sql.SQL("not_after"))
    return QUERIES["body"].format(move=sql.Literal(move), to_fenced=to_fenced, renaming=renaming)


def _given(
    *, attempt: int, revision: int, timeout_ms: int, not_after: datetime | None, for_real: bool
) -> dict[str, sql.Literal]:
    """Write the parameters of the fence; without `not_after` it is never too late."""
    return {
        "attempt": sql.Literal(attempt),
        "revision": sql.Literal(revision),
        "lock_timeout": sql.Literal(f"{timeout_ms}ms"),
        "not_after": sql.Literal(not_after),
        "for_real": sql.Literal(for_real),
    }


def put_up(
    session: Connection,
    node: str,
    move: str,
    schemas: Sequence[str],
    *,
    tables: Sequence[int],
    attempt: int,
    revision: int,
    deadline: float,
    not_after: datetime,
    behind: Sequence[bytes] = (),
) -> list[list[Any]]:
    """Lock the tables, rename the schemas, mark the stream, and commit journal state `fenced`.

    All of it is one message: a shardctl that is stopped leaves no lock behind. The parameters are
    those of `fence.put_up`; `attempt` is the number in the mark, and `tables` are the OIDs of
    those that are there. The server goes on with the queries of `behind` when it has committed:
    returns the rows of each. Raises WritersLeft, FenceRefused, fence_too_late, not_at_cutover.
    """
    began, timeout_ms = time.monotonic(), _QUICK_MS
    while True:
        all_ms = 2 * timeout_ms + round(len(tables) * _TABLE_MS)
        given = _given(
            attempt=attempt,
            revision=revision,
            timeout_ms=timeout_ms,
            not_after=not_after,
            for_real=True,
        )
        try:
            return _send(session, move, given, behind, all_ms=all_ms)
        except _TRANSIENT as error:
            left_ms = int(1000 * (deadline - time.monotonic())) - _QUICK_MS
            if left_ms < _QUICK_MS:
                there = blocking.holding(session, schemas, but=blocking.READERS)[:3]
                if left := fence.lasting(session, tables, since=began):
                    raise fence.WritersLeft(node, left, there) from error
                reason = "; ".join(there) or str(error).splitlines()[0]
                raise fence.FenceRefused(node, reason) from error
            # Those who were held up get their turn.
            time.sleep(_QUICK_MS / 1000)
            timeout_ms = min(blocking.yields_ms(session, schemas) or _QUICK_MS, left_ms)
        except psycopg.Error as error:
            fence.require_in_time(error, node, move)
            raise


def _send(
    session: Connection,
    move: str,
    given: Mapping[str, sql.Literal],
    behind: Sequence[bytes],
    *,
    all_ms: int,
) -> list[list[Any]]:
    """Put the fence up once, by its function where the session has that."""

    def send(put_up: sql.Composed) -> list[list[Any]]:
        message = QUERIES["stream_fence"].format(
            put_up=put_up,
            lock_timeout=given["lock_timeout"],
            statement_timeout=sql.Literal(f"{all_ms}ms"),
        )
        found = queries.rows_of_all(session, b";\n".join([message.as_bytes(session), *behind]))
        return found[len(found) - len(behind) :]

    try:
        return send(QUERIES["call"].format(**given))
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
        return send(QUERIES["do"].format(body=_body(move), **given))
