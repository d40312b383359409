"""The fence of a streamed move: locks against writers, then the rename, then a mark in the stream.

A rename alone is no fence for a stream: a writer that commits after it is published under the
retired name, and its rows never arrive. With the locks, no write is open when the mark is made,
so what the target has when it sees the mark is all that there is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.access import fence, structure_digest
from shardctl.access.fence import QUERIES
from shardctl.postgres import blocking, queries
from shardctl.postgres.queries import literals

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    digest, total, namespaces, again = structure_digest.known(session, schemas)
    # Asked afterwards: what ends in between shows in the versions.
    if structure_digest.changing(session, schemas) or fence.unlogged(session, schemas):
        return digest, Known()
    given = literals(namespaces=namespaces)
    looks = [QUERIES["is_held"].format(**given), again, QUERIES["position"]]
    # Composed here, while no client waits.
    found = Known(total, tuple(look.as_bytes(session) for look in looks))
    untouched(session, found)  # what it reads is in the session's caches then
    return digest, found


def untouched(session: Connection, known: Known) -> str | None:
    """Ask that of a session."""
    return known.untouched(queries.rows_of_all(session, b";\n".join(known.looks)))


def left(session: Connection, move: str, schemas: Sequence[str]) -> str | None:
    """Look behind the fence in one message, and give the structure's digest after that.

    None: sessions that write there, or make or have changed something, can still change it, or
    tables are unlogged.
    """
    looks = [
        *fence.looks(move),
        structure_digest.changing_query(schemas),
        structure_digest.query(session, schemas),
    ]
    makers, writers, unlogged, changing, digest = queries.rows_of_all(
        session, sql.SQL(";\n").join(looks)
    )
    return None if makers or writers or unlogged or changing else str(digest[0][0])


def prepare(session: Connection, move: str, *, revision: int) -> None:
    """Let the session plan the fence before clients wait.

    `revision` is the journal's. Raises not_at_cutover.
    """
    _make(session, move)
    given = literals(attempt=_REHEARSED, revision=revision, not_after=None, for_real=False)
    call = QUERIES["call"].format(**given, **literals(lock_timeout=f"{_QUICK_MS}ms"))
    queries.rows_of_last(session, QUERIES["rehearsal"].format(put_up=call))


def _make(session: Connection, move: str) -> None:
    """Make the function by which a session puts up the fence."""
    names = {"revision": sql.SQL("from_revision"), "lock_timeout": sql.SQL("quick")}
    to_fenced = QUERIES["to_fenced"].format(move=sql.Literal(move), **names)
    renaming = fence.renaming(move, wanted=sql.SQL("for_real"), not_after=sql.SQL("not_after"))
    given = literals(move=move)
    session.execute(QUERIES["function"].format(**given, to_fenced=to_fenced, renaming=renaming))


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
    began, timeout_ms, made = time.monotonic(), _QUICK_MS, False
    while True:
        all_ms = 2 * timeout_ms + round(len(tables) * _TABLE_MS)
        waits = literals(lock_timeout=f"{timeout_ms}ms", statement_timeout=f"{all_ms}ms")
        given = literals(attempt=attempt, revision=revision, not_after=not_after, for_real=True)
        call = QUERIES["call"].format(**given, **waits)
        message = QUERIES["stream_fence"].format(**waits, put_up=call)
        try:
            found = queries.rows_of_all(session, b";\n".join([message.as_bytes(session), *behind]))
            return found[len(found) - len(behind) :]
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
            if made:  # a moved schema is missing
                raise
            _make(session, move)  # the session was opened since
            made = True
        except _TRANSIENT as error:
            left_ms = int(1000 * (deadline - time.monotonic())) - _QUICK_MS
            if left_ms < _QUICK_MS:
                there = blocking.holding(session, schemas, but=blocking.READERS)[:3]
                if left := fence.lasting(session, schemas, since=began):
                    raise fence.WritersLeft(node, left, there) from error
                reason = "; ".join(there) or str(error).splitlines()[0]
                raise fence.FenceRefused(node, reason) from error
            # Those who were held up get their turn.
            time.sleep(_QUICK_MS / 1000)
            timeout_ms = min(blocking.yields_ms(session, schemas) or _QUICK_MS, left_ms)
        except psycopg.Error as error:
            fence.require_in_time(error, node, move)
            raise
