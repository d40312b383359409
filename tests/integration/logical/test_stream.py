"""A whole stream between two servers: exact, and what its parts have to be for that."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import Incomplete
from shardctl.postgres.logical import closing, publication, slot, structure, subscription
from tests.fixtures.servers.postgres import SUPERUSER, wait_for
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


def test_a_worker_that_starts_again_still_has_usage(streamed: Streamed) -> None:
    """The subscription's owner is no superuser; without USAGE its worker fails."""
    streamed.make(ACCOUNTS, FILLED, "GRANT USAGE ON SCHEMA shard2 TO app")
    streamed.begin()
    streamed.mark()
    closing.withhold(streamed.target, [SCHEMA], keep="streamer")
    for statement in LESSER:
        streamed.target.execute(statement.encode())
    if streamed.major > 15:
        streamed.target.execute(f"ALTER SUBSCRIPTION {NAME} SET (password_required = off)".encode())
    assert not _may_use(streamed, "app")
    before = _worker(streamed)
    streamed.target.execute("SELECT pg_terminate_backend(%s)", [before])
    wait_for(lambda: _worker(streamed) not in {None, before})
    streamed.source.execute("UPDATE shard2.accounts SET cents = 0")
    streamed.mark("again")
    streamed.equal("accounts")
    streamed.target.execute("REVOKE USAGE ON SCHEMA shard2 FROM streamer")
    streamed.target.execute("SELECT pg_terminate_backend(%s)", [_worker(streamed)])
    streamed.source.execute("UPDATE shard2.accounts SET cents = 1")
    wait_for(lambda: "permission denied for schema shard2" in streamed.servers[1].log())


LESSER = (
    "ALTER ROLE streamer SUPERUSER",
    f"ALTER SUBSCRIPTION {NAME} OWNER TO streamer",
    "ALTER ROLE streamer NOSUPERUSER",
    "GRANT ALL ON ALL TABLES IN SCHEMA shard2 TO streamer",
    "GRANT USAGE ON SCHEMA shardctl TO streamer",
    "GRANT ALL ON shardctl.stream TO streamer",
)
"""Make the owner of the subscription an ordinary role: to become the owner it is a superuser."""


def _may_use(streamed: Streamed, role: str) -> bool:
    row = streamed.target.execute(
        "SELECT has_schema_privilege(%s, %s, 'USAGE')", [role, SCHEMA]
    ).fetchone()
    return row == (True,)


def _worker(streamed: Streamed) -> int | None:
    row = streamed.target.execute(
        "SELECT pid FROM pg_stat_subscription WHERE received_lsn IS NOT NULL"
    ).fetchone()
    return row and row[0]


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
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="does not own its"):
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
    streamed.target.execute(closing.opening(MOVE, closing.access(streamed.source, [SCHEMA])))
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
        message = closing.opening(MOVE, wanted).as_string(streamed.target)
        streamed.target.execute(
            f"DO $claim$ BEGIN SET LOCAL lock_timeout = '200ms'; {message} END $claim$".encode()
        )
    assert closing.access(streamed.target, [SCHEMA])[0].grants[:2]
    client = streamed.client(1, user="app")
    client.execute("UPDATE shard2.accounts SET cents = cents + 1 WHERE id = 1")
    subscription.drop(streamed.target, NAME)
    with pytest.raises(Incomplete, match=r"shard2\.accounts: the triggers of move"):
        closing.remove(streamed.target, MOVE, [SCHEMA], keep=SUPERUSER, wanted=wanted, deadline=0)
    reader.rollback()
    closing.remove(streamed.target, MOVE, [SCHEMA], keep=SUPERUSER, wanted=wanted, deadline=0)
    assert closing.access(streamed.target, [SCHEMA]) == wanted
    left = (
        "SELECT FROM pg_trigger WHERE NOT tgisinternal UNION ALL SELECT FROM shardctl.stream_copy"
    )
    assert streamed.target.execute(left).fetchall() == []


def test_only_the_usage_that_closing_gave_is_taken_at_the_end(streamed: Streamed) -> None:
    """What operators granted on the new copy stays, to the subscription's owner, too."""
    streamed.make(ACCOUNTS, FILLED, "ALTER SCHEMA shard2 OWNER TO owning")
    streamed.copy()
    wanted = closing.access(streamed.source, [SCHEMA])
    for granted, usage in OPERATORS.items():
        closing.close(streamed.target, MOVE, [SCHEMA], keep="streamer")
        streamed.target.execute(closing.opening(MOVE, wanted))
        streamed.target.execute("GRANT USAGE ON SCHEMA shard2 TO reader")
        streamed.target.execute(granted.encode())
        closing.remove(streamed.target, MOVE, [SCHEMA], keep="streamer", wanted=wanted, deadline=0)
        assert _may_use(streamed, "reader")
        rights = closing.access(streamed.target, [SCHEMA])[0].grants
        kept = {grant.right for grant in rights if grant.grantee == "streamer"}
        assert kept == usage, granted
        streamed.target.execute("REVOKE ALL ON SCHEMA shard2 FROM streamer, app CASCADE")


OPERATORS = {
    "SELECT": set[str](),
    "GRANT CREATE ON SCHEMA shard2 TO streamer": {"CREATE"},
    "GRANT USAGE ON SCHEMA shard2 TO streamer WITH GRANT OPTION": {"USAGE"},
    "GRANT USAGE ON SCHEMA shard2 TO app WITH GRANT OPTION; SET ROLE app;"
    " GRANT USAGE ON SCHEMA shard2 TO streamer; RESET ROLE": {"USAGE"},
}
"""What an operator grants, and which rights the subscription's owner has after that."""


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
    closing.close(streamed.target, MOVE, [SCHEMA], keep=SUPERUSER)
    wanted = closing.access(streamed.source, [SCHEMA])
    closing.remove(streamed.target, MOVE, [SCHEMA], keep=SUPERUSER, wanted=wanted, deadline=0)
    ours = dict(streamed.target.execute(options).fetchall())
    assert ours["plain"] is None
    assert ours["never"] == ["autovacuum_enabled=false"]
    assert ours["always"] == ["autovacuum_enabled=true"]


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
    assert slot.drop(streamed.source, NAME)
    assert not slot.drop(streamed.source, NAME)
    publication.drop(streamed.source, NAME)
    assert publication.oid(streamed.source, NAME) is None
    structure.drop(streamed.target, [SCHEMA])


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


def test_partitions_truncated_or_made_later_and_a_check_that_reads_its_schema(
    streamed: Streamed,
) -> None:
    """The worker writes as the subscription's owner, which has USAGE, and not as the table's."""
    streamed.make(
        "CREATE TABLE days (day int, note text, PRIMARY KEY (day)) PARTITION BY RANGE (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM (10) TO (20)",
        "INSERT INTO days SELECT n, 'before' FROM generate_series(0, 19) AS n",
        "CREATE TABLE kinds (name text PRIMARY KEY)",
        "CREATE FUNCTION known(text) RETURNS boolean LANGUAGE plpgsql AS"
        " 'BEGIN RETURN $1 IS NULL OR EXISTS (SELECT FROM shard2.kinds WHERE name = $1); END'",
        "CREATE TABLE things (id bigint PRIMARY KEY, kind text CHECK (shard2.known(kind)))",
        "INSERT INTO kinds VALUES ('good')",
        "ALTER SCHEMA shard2 OWNER TO owning", "ALTER TABLE kinds OWNER TO owning",
        "ALTER TABLE things OWNER TO owning",
    )  # fmt: skip
    tables = [(SCHEMA, "days"), (SCHEMA, "kinds"), (SCHEMA, "things")]
    assert publication.tables(streamed.source, [SCHEMA]) == tables
    streamed.begin()
    streamed.source.execute("INSERT INTO shard2.things VALUES (1, 'good')")
    streamed.source.execute("TRUNCATE shard2.days_2")
    streamed.source.execute("UPDATE shard2.days SET day = 15 WHERE day = 5")
    streamed.mark()
    streamed.equal("days", "days_1", "days_2", "things")
    streamed.source.execute(
        "CREATE TABLE shard2.days_3 PARTITION OF shard2.days FOR VALUES FROM (20) TO (30)"
    )
    streamed.source.execute("INSERT INTO shard2.days VALUES (25, 'late')")
    wait_for(lambda: _state(streamed).errors)
    assert 'relation "shard2.days_3" does not exist' in streamed.servers[1].log()


def _state(streamed: Streamed) -> subscription.Progress:
    found = subscription.progress(streamed.source, streamed.target, NAME, NAME)
    assert found is not None
    return found


def test_an_apply_error_is_counted_and_the_stream_goes_on_once_it_is_repaired(
    streamed: Streamed,
) -> None:
    streamed.make(ACCOUNTS, FILLED)
    streamed.begin()
    streamed.mark()
    streamed.target.execute(closing.opening(MOVE, []))
    streamed.target.execute("INSERT INTO shard2.accounts VALUES (9000, 'by hand', 1)")
    streamed.source.execute("INSERT INTO shard2.accounts VALUES (9000, 'rightly', 1)")
    wait_for(lambda: _state(streamed).errors > 1)
    log = streamed.servers[1].log().splitlines()
    said = subscription.last_error(log, _state(streamed).origin)
    assert said is not None
    assert "accounts" in said  # 18 has words of its own for it
    assert _state(streamed).enabled
    streamed.target.execute("DELETE FROM shard2.accounts WHERE id = 9000")
    streamed.mark("again")
    streamed.equal("accounts")


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
