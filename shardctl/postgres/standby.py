"""Run a clone as a standby: let it catch up, bring it to a position, promote it, open it up.

Until it is opened and is a node, it accepts only shardctl's logins.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from shardctl.errors import Incomplete, Refused, ShardctlError
from shardctl.meter import BYTES, size
from shardctl.postgres import clone as clones
from shardctl.postgres import configuration, connection, queries, slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.sql import SQL

    from shardctl.fanout import Progress
    from shardctl.postgres.clone import Clone
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.hosted import Started

NEAR = 1 << 20
"""Bytes of WAL behind which a standby counts as having caught up."""

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_FOLLOW_POLL = 0.1
_STALLED_S = 60
_CUTOVER_POLL = 0.001
_PROMOTING_S = 1.0
"""How long the server itself waits: it keeps this session, and its lock, if shardctl dies then."""
_LINE = re.compile(r"^\s*\d+\s+([0-9A-F]+/[0-9A-F]+)", re.MULTILINE)
"""A line of a timeline's history."""


class NotFollowing(ShardctlError):
    """A standby that does not come near its source; `lines` are the last of its log."""

    def __init__(self, node: str, reason: str, lines: Sequence[str]) -> None:
        super().__init__(
            "\n  ".join([f"node {node}: {reason}; the clone's log ends with:", *lines]),
            hint="fix the cause, then run `shardctl moves resume` to wait again",
        )


def position(lsn: str) -> int:
    """Give the number of bytes that a position in the WAL stands for.

    >>> position("1/10") - position("0/FFFFFFF0")
    32
    """
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def start(clone: Clone, *, timeout: float = 300) -> Started:
    """Start the clone and wait until it takes connections; `timeout` is in seconds.

    It follows its source unless it was promoted. Raises CloneOfAnother and the errors of
    `HostedServer.start`.
    """
    clones.look(clone)
    return clone.server.start(timeout=timeout)


def ask(
    target: Connection, query: str | SQL, values: Mapping[str, object] | None = None
) -> list[Any]:
    """Give the rows that a clone answers, also where replay cancels the query in transit.

    `target` is in autocommit. Raises SerializationFailure when that happens again and again.
    """
    return connection.ask_again(lambda: target.execute(query, values).fetchall())


def follow(clone: Clone, source: Connection, target: Connection, *, progress: Progress) -> None:
    """Wait until the clone streams from its slot, at most NEAR bytes of WAL behind its source.

    Both sessions are in autocommit. Gives up when it has got no further for a minute.
    Raises NotFollowing, slot_gone.
    """
    node, reached, left = clone.server.node.name, "", -1
    moved = time.monotonic()
    while True:
        [(recovering, replayed, status)] = ask(target, _QUERIES["following"])
        if not recovering:
            raise NotFollowing(node, "it is not a standby", [])
        slots.require(source, node, clone.slot)
        written, active = queries.one(source, _QUERIES["followed"], {"slot": clone.slot})
        # A receiver calls itself streaming before the source has agreed. Until the source knows
        # what the standby looks at (hot_standby_feedback), replay breaks off its questions.
        streams = active and status == "streaming"
        behind = position(written) - position(replayed)
        if streams and behind <= NEAR:
            return
        now = time.monotonic()
        if left < 0:
            left = max(behind, 0)
            progress.expect(node, "catching up", left, BYTES)
        elif behind < left:
            progress.advance(node, left - behind)
            left = behind
        if replayed != reached:
            reached, moved = replayed, now
        if now - moved > _STALLED_S:
            how = "streams" if streams else "does not stream"
            reason = f"the clone {how}, {size(behind)} behind, and got no further in {_STALLED_S} s"
            raise NotFollowing(node, reason, clone.server.log_tail())
        time.sleep(_FOLLOW_POLL)


def replayed(target: Connection, lsn: str, deadline: float) -> str:
    """Wait until the standby has replayed `lsn`, and give the position at which it was then.

    `deadline` is on `time.monotonic()`. Raises clone_not_replayed.
    """
    wanted = position(lsn)
    while True:
        [(reached,)] = ask(target, "SELECT coalesce(pg_last_wal_replay_lsn(), '0/0')")
        if position(reached) >= wanted:
            return str(reached)
        if time.monotonic() > deadline:
            raise Refused(
                "clone_not_replayed",
                f"the clone did not replay the WAL up to {lsn} in time: it has reached {reached}",
                hint="run `shardctl moves resume` to try again; check the clone's disk",
            )
        time.sleep(_CUTOVER_POLL)


def promote(target: Connection, deadline: float) -> None:
    """Promote the standby, and wait until it takes writes; one that does already is not changed.

    `target` is in autocommit, `deadline` on `time.monotonic()`. Raises clone_not_promoted.
    """
    while True:
        left = min(_PROMOTING_S, max(0.0, deadline - time.monotonic()))
        promoting = _QUERIES["promote"].format(polls=sql.Literal(int(left * 1000)))
        try:
            [(recovering,)] = queries.rows_of_last(target, promoting)
        except (
            # Replay may cancel it, and a promotion asked for earlier may end just now.
            psycopg.errors.SerializationFailure,
            psycopg.errors.ObjectNotInPrerequisiteState,
        ):
            recovering = in_recovery(target)
        if not recovering:
            return
        if time.monotonic() > deadline:
            raise Incomplete(
                "clone_not_promoted",
                "the clone is still a standby after pg_promote()",
                hint="check the clone's log; when it has been promoted, run `shardctl moves "
                "resume`",
            )


def promoted_at(session: Connection) -> str | None:
    """Read at which position the timeline began on which the session's server, no standby, writes.

    None on the first timeline, which began with initdb.
    """
    row = session.execute(_QUERIES["history"]).fetchone()
    found = _LINE.findall(row[0]) if row is not None and row[0] is not None else []
    return found[-1] if found else None


def in_recovery(target: Connection) -> bool:
    """Return whether a server is a standby yet; `target` is in autocommit."""
    [(recovering,)] = ask(target, "SELECT pg_is_in_recovery()")
    return bool(recovering)


def require_closed(clone: Clone, target: Connection, user: str) -> None:
    """Prove that the clone accepts only `user`, and runs with the overrides.

    Raises clone_not_closed.
    """
    wanted = configuration.OVERRIDES
    given = {"user": user, "names": list(wanted), "settings": list(wanted.values())}
    wrong = [problem for (problem,) in ask(target, _QUERIES["not_closed"], given)]
    if wrong:
        raise Refused(
            "clone_not_closed",
            "\n  ".join(
                [f"node {clone.server.node.name}: the clone runs with unexpected settings:", *wrong]
            ),
            hint="its server reads files outside its data directory, or starts with extra "
            "parameters: change that, then run `shardctl moves resume`",
        )


def opening() -> sql.Composed:
    """Compose what opens the clone on the server itself, for the same message as a claim.

    Who sends it need not live to see its end. It takes a role that may run programs there. Its
    row is what `is_open` takes, which shows whether it worked; `open_up` proves it when there is
    time for that.
    """
    return _QUERIES["open"].format(program=sql.Literal(clones.OPENING_ONCE))


def files_loaded(target: Connection) -> object:
    """Give the time at which the server has read its files, by which `is_open` goes."""
    return queries.one(target, _QUERIES["files_read"])[0]


def is_open(target: Connection, before: object, deadline: float) -> bool:
    """Wait until files are read that were put in place after `before`; return whether they are fit.

    `target` is in autocommit, `deadline` on `time.monotonic()`.
    """
    # The postmaster signals its children before it reads the rules for clients, and takes no
    # connection in between: all logins from now on are judged by the new ones.
    while True:
        at, fit = queries.one(target, _QUERIES["files_read"])
        if at != before:
            return bool(fit)
        if time.monotonic() > deadline:
            return False
        time.sleep(_CUTOVER_POLL)


def open_up(clone: Clone, target: Connection, deadline: float) -> tuple[str, ...]:
    """Accept all clients that the source accepts, with the node's own settings.

    Returns the parameters whose values wait for a restart.

    It was promoted and has claimed its shards. Archiving stays off, and no commit waits for a
    standby. `target` is in autocommit, `deadline` on `time.monotonic()`. Doing it again is
    harmless. Raises clone_not_opened, clone_refused.
    """
    clones.open_files(clone)
    before = files_loaded(target)
    target.execute("SELECT pg_reload_conf()")
    is_read = is_open(target, before, deadline)
    wrong = [problem for (problem,) in target.execute(_QUERIES["refused"])]
    if wrong or not is_read:
        raise Incomplete(
            "clone_not_opened",
            f"node {clone.server.node.name}: the new primary still accepts only shardctl's logins:"
            + "\n  ".join(["", *(wrong or ["the server did not reload its files in time"])]),
            hint="fix the file named above, then run `shardctl moves resume`",
        )
    return tuple(name for (name,) in target.execute(_QUERIES["waiting"]))
