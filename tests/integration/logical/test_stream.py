"""A whole stream between two servers: exact, and what its parts have to be for that."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.postgres import slots
from shardctl.postgres.logical import closing, publication, slot, structure, subscription
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.streams import MOVE, NAME, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.servers.streams import Streamed

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, cents bigint NOT NULL)"
FILLED = "INSERT INTO accounts SELECT n, 'owner ' || n, n FROM generate_series(1, 500) AS n"


def test_a_stream_goes_on_exactly_where_its_copy_ends(streamed: Streamed) -> None:
    """Four writers with savepoints, rollbacks and deletes go on all the time."""
    streamed.make(ACCOUNTS, FILLED)
    stop = threading.Event()
    threads = [
        threading.Thread(target=_write, args=(streamed.client(0, autocommit=False), seed, stop))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    try:
        streamed.begin()
        streamed.mark()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    streamed.mark("end")
    streamed.equal("accounts")
    assert len(streamed.rows("accounts")[0]) > 100


def _write(
    session: psycopg.Connection[tuple[object, ...]], seed: int, stop: threading.Event
) -> None:
    chance = random.Random(seed)  # noqa: S311  # not a secret
    number = 100_000 * (seed + 1)
    while not stop.is_set():
        with session.transaction(force_rollback=chance.random() < 0.2):
            for _ in range(3):
                number += 1
                session.execute("INSERT INTO shard2.accounts VALUES (%s, 'new', 1)", [number])
                with session.transaction(force_rollback=chance.random() < 0.5):
                    session.execute(
                        "UPDATE shard2.accounts SET cents = cents + 1"
                        " WHERE id <= 500 AND mod(id, 100) = %s",
                        [4 * chance.randrange(25) + seed],
                    )
                session.execute("DELETE FROM shard2.accounts WHERE id = %s", [number - 7])


def _may_use(streamed: Streamed, role: str) -> bool:
    row = streamed.target.execute(
        "SELECT has_schema_privilege(%s, %s, 'USAGE')", [role, SCHEMA]
    ).fetchone()
    return row == (True,)


def test_a_closed_copy_refuses_all_but_its_stream(streamed: Streamed) -> None:
    streamed.make(
        ACCOUNTS, FILLED, "CREATE TABLE notes (id bigint PRIMARY KEY REFERENCES accounts)",
        "INSERT INTO notes SELECT 1", "GRANT USAGE ON SCHEMA shard2 TO app",
    )  # fmt: skip
    streamed.begin()
    client = streamed.client(1)
    for role in ("origin", "replica"):
        client.execute(f"SET session_replication_role = {role}".encode())
        for write in WRITES:
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                client.execute(write.encode())
    client.execute("RESET session_replication_role")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        client.execute("TRUNCATE shard2.accounts CASCADE")
    with (
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        client.cursor().copy("COPY shard2.accounts FROM STDIN") as rows,
    ):
        rows.write_row((7000, "a", 1))
    streamed.source.execute("TRUNCATE shard2.accounts CASCADE")
    streamed.source.execute("INSERT INTO shard2.accounts VALUES (1, 'after', 1)")
    streamed.mark()
    streamed.equal("accounts", "notes")
    assert len(streamed.rows("accounts")[1]) == 1
    streamed.target.execute(
        closing.opening(streamed.target, MOVE, closing.access(streamed.source, [SCHEMA]))
    )
    assert _may_use(streamed, "app")


WRITES = (
    "INSERT INTO shard2.accounts VALUES (7000, 'a', 1)",
    "UPDATE shard2.accounts SET cents = 1",
    "DELETE FROM shard2.accounts WHERE false",
    "INSERT INTO shard2.accounts VALUES (1, 'a', 1) ON CONFLICT DO NOTHING",
    "MERGE INTO shard2.accounts USING (VALUES (1)) AS b ON false WHEN MATCHED THEN DELETE",
)


def test_opening_waits_for_no_reader_and_gives_the_rights_of_the_source(streamed: Streamed) -> None:
    streamed.make(
        ACCOUNTS, FILLED, "GRANT INSERT, SELECT, UPDATE ON accounts TO app",
        "ALTER SCHEMA shard2 OWNER TO owning",
        "GRANT USAGE ON SCHEMA shard2 TO app",
        "GRANT ALL ON SCHEMA shard2 TO reader WITH GRANT OPTION",
        "SET ROLE reader", "GRANT USAGE ON SCHEMA shard2 TO PUBLIC", "RESET ROLE",
    )  # fmt: skip
    streamed.begin()
    streamed.mark()
    assert not any(_may_use(streamed, role) for role in ("app", "reader", "owning"))
    reader = streamed.client(1, autocommit=False)
    reader.execute("SELECT count(*) FROM shard2.accounts")
    wanted = closing.access(streamed.source, [SCHEMA])
    assert {grant.grantee for grant in wanted[0].grants} == {"owning", "app", "reader", ""}
    for _ in range(2):  # a claim may be repeated
        message = closing.opening(streamed.target, MOVE, wanted).as_string(streamed.target)
        streamed.target.execute(
            f"DO $claim$ BEGIN SET LOCAL lock_timeout = '200ms'; {message} END $claim$".encode()
        )
    assert closing.access(streamed.target, [SCHEMA])[0].grants[:2]
    client = streamed.client(1, user="app")
    client.execute("UPDATE shard2.accounts SET cents = cents + 1 WHERE id = 1")
    subscription.drop(streamed.target, NAME)
    with raises_code("copy_triggers_left", match=r"shard2\.accounts"):
        closing.remove(streamed.target, MOVE, deadline=0)
    reader.rollback()
    closing.remove(streamed.target, MOVE, deadline=0)
    assert closing.access(streamed.target, [SCHEMA]) == wanted
    left = (
        "SELECT FROM pg_trigger WHERE NOT tgisinternal UNION ALL SELECT FROM shardctl.stream_copy"
    )
    assert streamed.target.execute(left).fetchall() == []


def test_what_the_source_wrote_arrives_whatever_is_lost_on_the_way(streamed: Streamed) -> None:
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
    options = "SELECT substream::text, subdisableonerr, subbinary, subenabled FROM pg_subscription"
    streaming = "true" if streamed.major == 15 else "t"
    assert streamed.target.execute(options).fetchone() == (streaming, False, False, True)
    for _ in range(2):
        streamed.source.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
        )
        streamed.source.execute("UPDATE shard2.accounts SET cents = cents + 1")
    streamed.mark("again")
    assert _state(streamed).enabled
    streamed.equal("accounts")
    # A slot that streams is dropped.
    streamed.target.execute(f"ALTER SUBSCRIPTION {NAME} DISABLE".encode())
    assert slots.drop(streamed.source, NAME)
    assert not slots.drop(streamed.source, NAME)
    publication.drop(streamed.source, NAME)
    assert publication.oid(streamed.source, NAME) is None
    structure.drop(streamed.target, [SCHEMA])


def _state(streamed: Streamed) -> subscription.Progress:
    found = subscription.progress(streamed.source, streamed.target, NAME, NAME)
    assert found is not None
    return found


def test_a_subscription_is_dropped_also_when_its_source_is_gone(
    streamed: Streamed, stopped: Callable[[], None]
) -> None:
    streamed.make(ACCOUNTS, FILLED)
    streamed.begin()
    streamed.mark()
    stopped()
    assert subscription.drop(streamed.target, NAME)
    assert not subscription.drop(streamed.target, NAME)
    assert streamed.target.execute("SELECT roname FROM pg_replication_origin").fetchall() == []


@pytest.fixture
def stopped(streamed: Streamed) -> Callable[[], None]:
    """Give what stops the source; it runs again when the test ends."""
    server = streamed.servers[0]

    def stop() -> None:
        streamed.source.close()
        server.stop("immediate")
        streamed.stack.callback(server.start)

    return stop


def test_autovacuum_is_off_until_the_end_and_what_was_never_validated_stays_so(
    streamed: Streamed,
) -> None:
    streamed.make(
        "CREATE TABLE plain (id bigint PRIMARY KEY)",
        "CREATE TABLE never (id bigint PRIMARY KEY) WITH (autovacuum_enabled = false)",
        "CREATE TABLE always (id bigint PRIMARY KEY) WITH (autovacuum_enabled = true)",
        "CREATE TABLE split (id bigint PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE people (id bigint PRIMARY KEY, boss bigint)",
        "INSERT INTO people VALUES (1, 7)",
        "ALTER TABLE people ADD CONSTRAINT led FOREIGN KEY (boss) REFERENCES people NOT VALID",
        "ALTER TABLE people ADD CONSTRAINT low CHECK (boss < 5) NOT VALID",
    )  # fmt: skip
    options = (
        "SELECT relname, reloptions FROM pg_class"
        " WHERE relname IN ('plain', 'never', 'always') ORDER BY 1"
    )
    streamed.copy()
    streamed.equal("people")
    valid = "SELECT conname, convalidated FROM pg_constraint WHERE conname IN ('led', 'low')"
    for session in (streamed.source, streamed.target):
        assert sorted(session.execute(valid)) == [("led", False), ("low", False)]
    assert all("autovacuum_enabled=off" in row[1] for row in streamed.target.execute(options))
    closing.close(streamed.target, MOVE, [SCHEMA])
    closing.remove(streamed.target, MOVE, deadline=0)
    ours = dict(streamed.target.execute(options).fetchall())
    assert ours["plain"] is None
    assert ours["never"] == ["autovacuum_enabled=false"]
    assert ours["always"] == ["autovacuum_enabled=true"]


def test_a_publication_that_is_younger_than_its_slot_stops_the_stream_or_loses_rows(
    streamed: Streamed,
) -> None:
    """So `publication.create` comes first."""
    streamed.make(ACCOUNTS, FILLED)
    with slot.make(streamed.route, NAME, watch=streamed.source, lock_timeout_s=20) as snapshot:
        structure.make_tables(streamed.route, [SCHEMA], major=streamed.major)
        streamed.pour(snapshot)
    streamed.source.execute("INSERT INTO shard2.accounts VALUES (900, 'between', 1)")
    streamed.publish()
    streamed.follow()
    streamed.source.execute(
        "INSERT INTO shardctl.stream (move, attempt, what) VALUES (%s, 1, 'mark')", [MOVE]
    )
    there = "SELECT 1 FROM shardctl.stream"
    wait_for(lambda: _state(streamed).errors or streamed.target.execute(there).fetchone())
    source, target = streamed.rows("accounts")
    assert len(target) == len(source) - 1
