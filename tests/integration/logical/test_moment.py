"""The same moment on both servers of a stream, while clients write."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from shardctl.postgres.logical import moment
from shardctl.postgres.logical.moment import Side, Wanted
from tests.fixtures.servers.streams import MOVE, NAME, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.logical.moment import Moment
    from tests.fixtures.servers.streams import Streamed

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, cents bigint NOT NULL)"
NOTES = "CREATE TABLE notes (id bigint PRIMARY KEY, about bigint REFERENCES accounts, note text)"
FILLED = "INSERT INTO accounts SELECT n, 'owner ' || n, n FROM generate_series(1, 500) AS n"
LOCK_MS = 250
"""A lock timeout under which a busy machine gets through."""


@contextmanager
def sides(streamed: Streamed) -> Iterator[tuple[Side, Side]]:
    """Open two sessions with each server."""
    route = streamed.route
    with ExitStack() as stack:
        nodes = (route.source, route.source, route.target, route.target)
        a, b, c, d = (stack.enter_context(closing(route.connect(node))) for node in nodes)
        yield Side(a, b), Side(c, d)


def wanted(streamed: Streamed, mark: str, before: str) -> Wanted:
    return Wanted(NAME, MOVE, streamed.schemas, 2, mark, before, LOCK_MS)


def take(streamed: Streamed, source: Side, target: Side, number: int = 1) -> Moment:
    before = f"before {number}"
    streamed.mark(before)
    return moment.take(source, target, wanted(streamed, f"moment {number}", before))


def seen(session: psycopg.Connection[tuple[object, ...]], snapshot: str) -> list[list[object]]:
    """Give all rows that a snapshot sees."""
    found = []
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        for table in ("accounts", "notes"):
            question = sql.SQL("SELECT t::text FROM {} AS t ORDER BY 1")
            rows = session.execute(question.format(sql.Identifier(SCHEMA, table)))
            found.append([row for (row,) in rows])
    return found


def test_nobody_waits_longer_than_the_lock_timeout(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed.make(ACCOUNTS, NOTES, FILLED)
    streamed.begin()
    old = streamed.client(0, autocommit=False)
    old.execute("UPDATE shard2.accounts SET cents = 0 WHERE id = 1")
    with sides(streamed) as (source, target):
        with pytest.raises(moment.NotLocked):
            take(streamed, source, target)
        client = streamed.client(0)
        client.execute("SET lock_timeout = '100ms'")
        client.execute("UPDATE shard2.accounts SET cents = 0 WHERE id = 2")
        streamed.mark("the stream goes on")
    # A snapshot for which the disk has no room leaves the gates open: the locks are not there
    # either, so nobody asks for it.
    full = sql.SQL(
        "BEGIN; {passed}; DO $$ BEGIN RAISE 'no room' USING ERRCODE = 'disk_full'; END $$"
    )
    with sides(streamed) as (source, target):
        with monkeypatch.context() as patch:
            patch.setitem(moment.QUERIES, "hold", full)
            with pytest.raises(moment.NotLocked):
                take(streamed, source, target, 2)
        old.rollback()
        locks = "SELECT objid FROM pg_locks WHERE locktype = 'advisory'"
        assert source.locking.execute(locks).fetchall() == []
        # A mark after which others came is no proof.
        with pytest.raises(moment.NotLocked):
            moment.take(source, target, wanted(streamed, "moment", "before 1"))
    with sides(streamed) as (source, target):
        taken = take(streamed, source, target, 3)
        assert seen(streamed.source, taken.source) == seen(streamed.target, taken.target)
