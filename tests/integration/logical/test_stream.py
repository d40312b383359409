"""A whole stream between two servers: exact, and the same moment on both of them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from shardctl.postgres.logical import closing, moment, subscription
from shardctl.postgres.logical.moment import Side, Wanted
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.streams import MOVE, NAME, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.logical.moment import Moment
    from tests.fixtures.servers.streams import Streamed

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, cents bigint NOT NULL)"
FILLED = "INSERT INTO accounts SELECT n, 'owner ' || n, n FROM generate_series(1, 500) AS n"


def _may_use(streamed: Streamed, role: str) -> bool:
    row = streamed.target.execute(
        "SELECT has_schema_privilege(%s, %s, 'USAGE')", [role, SCHEMA]
    ).fetchone()
    return row == (True,)


WRITES = (
    ("replica", "INSERT INTO shard2.accounts VALUES (7000, 'a', 1)"),
    ("replica", "UPDATE shard2.accounts SET cents = 1"),
    ("replica", "DELETE FROM shard2.accounts WHERE false"),
    ("origin", "TRUNCATE shard2.accounts"),
)


def test_a_closed_copy_takes_its_stream_alone_and_is_opened_beside_readers(
    streamed: Streamed,
) -> None:
    streamed.make(
        ACCOUNTS, FILLED, "GRANT INSERT, SELECT, UPDATE ON accounts TO app",
        "ALTER SCHEMA shard2 OWNER TO owning",
        "GRANT USAGE ON SCHEMA shard2 TO app",
        "GRANT ALL ON SCHEMA shard2 TO reader WITH GRANT OPTION",
        "SET ROLE reader", "GRANT USAGE ON SCHEMA shard2 TO PUBLIC", "RESET ROLE",
    )  # fmt: skip
    streamed.begin()
    streamed.mark()
    superuser = streamed.client(1)
    for role, write in WRITES:
        superuser.execute(f"SET session_replication_role = {role}".encode())
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            superuser.execute(write.encode())
    assert not any(_may_use(streamed, role) for role in ("app", "reader", "owning"))
    reader = streamed.client(1, autocommit=False)
    reader.execute("SELECT count(*) FROM shard2.accounts")
    wanted = closing.granted(streamed.source, [SCHEMA], retired=["shard2__retired"])
    assert {grant.grantee for grant in wanted} == {"owning", "app", "reader", ""}
    for _ in range(2):  # a claim may be repeated
        message = closing.opening(streamed.target, MOVE, [SCHEMA], wanted).as_string()
        streamed.target.execute(
            f"DO $claim$ BEGIN SET LOCAL lock_timeout = '200ms'; {message} END $claim$".encode()
        )
    client = streamed.client(1, user="app")
    client.execute("UPDATE shard2.accounts SET cents = cents + 1 WHERE id = 1")
    subscription.drop(streamed.target, NAME)
    with raises_code("copy_triggers_left", match=r"shard2\.accounts"):
        closing.remove(streamed.target, MOVE, deadline=0)
    reader.rollback()
    closing.remove(streamed.target, MOVE, deadline=0)
    assert closing.granted(streamed.target, [SCHEMA]) == wanted
    left = (
        "SELECT FROM pg_trigger WHERE NOT tgisinternal UNION ALL SELECT FROM shardctl.stream_copy"
    )
    assert streamed.target.execute(left).fetchall() == []


def test_what_the_source_wrote_arrives_whatever_its_origin(streamed: Streamed) -> None:
    streamed.make(ACCOUNTS, FILLED)
    streamed.begin()
    # Each move gets its own marks alone.
    streamed.source.execute(
        "INSERT INTO shardctl.stream (move, attempt, what) VALUES ('00000000', 1, 'decided')"
    )
    streamed.mark()
    assert streamed.target.execute("SELECT move FROM shardctl.stream").fetchall() == [(MOVE,)]
    # What was written under an origin is the source's, too.
    client = streamed.client(0)
    client.execute("SELECT pg_replication_origin_create('elsewhere')")
    client.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
    client.execute("INSERT INTO shard2.accounts VALUES (0, 'from elsewhere', 1)")
    client.execute("SELECT pg_replication_origin_session_reset()")
    client.execute("SELECT pg_replication_origin_drop('elsewhere')")
    streamed.mark("origin")
    streamed.equal("accounts")
    assert len(streamed.rows("accounts")[1]) == 501
    streamed.source.execute("TRUNCATE shard2.accounts")
    streamed.mark("truncated")
    assert streamed.rows("accounts") == ([], [])


NOTES = "CREATE TABLE notes (id bigint PRIMARY KEY, about bigint REFERENCES accounts, note text)"
LOCK_MS = 250
"""A lock timeout under which a busy machine gets through."""


@contextmanager
def sides(streamed: Streamed) -> Iterator[tuple[Side, Side]]:
    """Open two sessions with each server."""
    route = streamed.route
    with ExitStack() as stack:
        nodes = (route.source, route.source, route.target, route.target)
        a, b, c, d = (stack.enter_context(route.connect(node)) for node in nodes)
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
    # either, so no test asks for it.
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
        # A mark proves nothing once later marks have come.
        with pytest.raises(moment.NotLocked):
            moment.take(source, target, wanted(streamed, "moment", "before 1"))
    with sides(streamed) as (source, target):
        taken = take(streamed, source, target, 3)
        assert seen(streamed.source, taken.source) == seen(streamed.target, taken.target)
