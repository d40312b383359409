"""The copy of a stream and its slot: all arrives once, and what is in the way is named."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.postgres import slots
from shardctl.postgres.logical import copying, publication, structure
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.streams import MOVE, NAME, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection
    from tests.fixtures.servers.streams import Streamed

KINDS = (
    "CREATE TYPE mood AS ENUM ('good', 'bad')",
    "CREATE TYPE pair AS (mood mood, number int)",
    "CREATE DOMAIN few AS int CHECK (VALUE < 10)",
    "CREATE TYPE span AS RANGE (subtype = float8)",
    """CREATE TABLE kinds (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        twice bigint GENERATED ALWAYS AS (id * 2) STORED, gone int, mood mood, moods mood[],
        pair pair, pairs pair[], few few, span span,
        spans span[], price money, at timestamptz, took interval, raw bytea, doc jsonb,
        words tsvector, place point, "odd ""name" text, ints int[], real real)""",
    "ALTER TABLE kinds DROP COLUMN gone",
    """INSERT INTO kinds (mood, moods, pair, pairs, few, span, spans, price, at, took, raw, doc,
        words, place, "odd ""name", ints, real) SELECT 'bad', '{good,bad}', '(good,1)',
        ARRAY['(bad,2)'::pair], 3, '[1,2)', ARRAY['[3,4]'::span], 1234.5, now(), '1 mon -3 days',
        '\\x00ff0a', '{"a": [1, null]}', 'a:1 b', '(1,2)', E'tab\\t \\\\ line\\n',
        '{1,NULL}', 0.1 FROM generate_series(1, 50)""",
    "CREATE TABLE mooded (id int PRIMARY KEY, mood mood, at date)",
    "INSERT INTO mooded SELECT n, 'good', now() FROM generate_series(1, 50) AS n",
    'CREATE TABLE "Odd ""table%s" (x int)', 'INSERT INTO "Odd ""table%s" VALUES (1), (NULL)',
    "CREATE TABLE bare ()", "INSERT INTO bare DEFAULT VALUES", "CREATE TABLE nothing (id int)",
    "CREATE TABLE parent (a int, b text)", "CREATE TABLE child (c int) INHERITS (parent)",
    "INSERT INTO parent VALUES (1, 'p')", "INSERT INTO child VALUES (2, 'c', 3)",
    "CREATE TABLE days (day int, note text) PARTITION BY LIST (day)",
    "CREATE TABLE days_1 (note text, day int)", "ALTER TABLE days ATTACH PARTITION days_1 DEFAULT",
    "INSERT INTO days SELECT n, 'x' FROM generate_series(1, 40) AS n",
    "CREATE TABLE secret (id int)", "INSERT INTO secret VALUES (1), (2)",
    "ALTER TABLE secret ENABLE ROW LEVEL SECURITY",
)  # fmt: skip
TABLES = ("kinds", "mooded", "bare", "nothing", "parent", "child", "days_1", "secret")
ODD = '"Odd ""table%s"'


@pytest.mark.long
def test_every_kind_of_column_and_table_arrives(streamed: Streamed) -> None:
    streamed.make(*KINDS)
    found = {table.name: table for table in copying.tables(streamed.source, [SCHEMA])}
    assert not found["kinds"].binary
    assert found["mooded"].binary
    assert "twice" not in found["kinds"].columns
    assert "days" not in found
    streamed.copy()
    streamed.equal(*TABLES, ODD)
    total = sum(table.bytes for table in copying.tables(streamed.source, [SCHEMA]))
    assert sum(streamed.reports) == total


def test_row_security_never_leaves_rows_out(streamed: Streamed) -> None:
    streamed.make(
        "CREATE TABLE secret (id int)", "INSERT INTO secret VALUES (1)",
        "ALTER TABLE secret ENABLE ROW LEVEL SECURITY", "GRANT USAGE ON SCHEMA shard2 TO app",
        "GRANT SELECT ON secret TO app",
    )  # fmt: skip
    structure.make_tables(streamed.route, [SCHEMA], major=streamed.major)
    database = dataclasses.replace(streamed.route.database, user="app")
    streamed.target.execute("GRANT ALL ON SCHEMA shard2 TO app")
    streamed.target.execute("GRANT ALL ON ALL TABLES IN SCHEMA shard2 TO app")
    with slots.make_logical(streamed.route, NAME, watch=streamed.source, report=print) as snapshot:
        tables = copying.tables(streamed.source, [SCHEMA])
        route = dataclasses.replace(streamed.route, database=database)
        with raises_code("copy_failed"):
            copying.copy(route, tables, snapshot=snapshot, jobs=1)


def test_a_publication_that_is_made_says_what_holds_it_up(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "_LOCK_TIMEOUT_S", 0.05)
    streamed.make("CREATE TABLE held (id int PRIMARY KEY)", "CREATE TABLE held2 (id int)")
    other = streamed.client(0, autocommit=False)
    other.execute("LOCK TABLE shard2.held IN SHARE MODE")
    writer = streamed.client(0, autocommit=False)
    writer.execute("INSERT INTO shard2.held2 VALUES (1)")  # does not hold it up
    who = str(other.info.backend_pid)
    with raises_code("publication_blocked", match=who):
        publication.create(streamed.source, NAME, [(SCHEMA, "held")], move=MOVE)
    other.rollback()
    publication.create(streamed.source, NAME, [(SCHEMA, "held")], move=MOVE)
    assert publication.oid(streamed.source, NAME)


WRITE = "INSERT INTO shardctl.event (who, command, result) VALUES ('a', 'b', 'c')"


@pytest.fixture
def writer(streamed: Streamed) -> Iterator[Connection]:
    """Give a session in a transaction that has written."""
    session = streamed.client(0, autocommit=False, application_name="bulk load")
    session.execute(WRITE)
    yield session
    session.rollback()


def test_an_open_transaction_is_reported_and_a_stop_leaves_no_slot(
    streamed: Streamed, writer: Connection
) -> None:
    seen: list[Holder] = []

    def report(blocker: Holder) -> None:
        seen.append(blocker)
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        slots.make_logical(streamed.route, NAME, watch=streamed.source, report=report),
    ):
        pass
    (blocker,) = seen
    assert blocker.pid == writer.info.backend_pid
    assert "bulk load" in str(blocker)
    assert blocker.since is not None
    assert streamed.source.execute("SELECT FROM pg_replication_slots").fetchall() == []


def test_the_wait_is_bounded_and_a_prepared_transaction_is_named(
    streamed: Streamed, writer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_LOCK_TIMEOUT_S", 0.6)
    writer.execute("PREPARE TRANSACTION 'forgotten'")
    writer.rollback()
    with (
        raises_code("slot_blocked", match="forgotten"),
        slots.make_logical(streamed.route, NAME, watch=streamed.source, report=print),
    ):
        pass
    assert not slots.keeps(streamed.source, NAME)


def test_a_slot_that_is_lost_says_why(streamed: Streamed) -> None:
    setting = "max_slot_wal_keep_size"
    with slots.make_logical(streamed.route, NAME, watch=streamed.source, report=print):
        slots.require(streamed.source, "a", NAME)
    try:
        set_to(streamed, f"ALTER SYSTEM SET {setting} = '1MB'")
        wait_for(lambda: is_lost(streamed))
        with raises_code("slot_gone", match="wal_removed"):
            slots.require(streamed.source, "a", NAME)
    finally:
        set_to(streamed, f"ALTER SYSTEM RESET {setting}")
    assert slots.drop(streamed.source, NAME)


def is_lost(streamed: Streamed) -> bool:
    """Write WAL and end it, and tell whether the slot has survived that."""
    streamed.source.execute("SELECT pg_switch_wal(), txid_current()")
    streamed.source.execute("CHECKPOINT")
    return not slots.keeps(streamed.source, NAME)


def set_to(streamed: Streamed, statement: str) -> None:
    streamed.source.execute(statement.encode())
    streamed.source.execute("SELECT pg_reload_conf()")
