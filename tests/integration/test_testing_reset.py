"""What a reset of a test fleet brings back, and what it does not mind."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl import testing
from shardctl.router import ShardedDatabase, core
from shardctl.router.errors import WritesUnseen
from shardctl.testing import emptying
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.testing.fleet import ShardFleet

TOPOLOGY = """
cluster: reset
shards: {count: 4}
database: {name: app, app_roles: [app], migrations: migrations}
nodes:
  a: {host: 10.0.0.1, port: 5432, shards: 0-3}
"""
MIGRATION = """
CREATE TABLE kinds (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text UNIQUE,
    loud text GENERATED ALWAYS AS (upper(name)) STORED
);
INSERT INTO kinds (name) VALUES ('one'), ('two'), (NULL);
CREATE TABLE things (
    id bigint PRIMARY KEY DEFAULT next_id(), kind int REFERENCES kinds, body text
);
CREATE TABLE parts (
    thing bigint NOT NULL REFERENCES things, number int, PRIMARY KEY (thing, number)
) PARTITION BY RANGE (number);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (10) TO (20);
CREATE TABLE "odd ""name; %s" (number int PRIMARY KEY);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
    AS $$BEGIN RAISE 'no row of things is ever removed'; END$$;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON things EXECUTE FUNCTION refuse();
"""
KINDS = [(1, "one", "ONE"), (2, "two", "TWO"), (3, None, None)]


@pytest.fixture(scope="module")
def running(
    session_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardFleet]:
    application = tmp_path_factory.mktemp("application")
    (application / "migrations").mkdir()
    (application / "migrations" / "0001_things.sql").write_text(MIGRATION)
    (application / "topology.yaml").write_text(TOPOLOGY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(session_directory))
        with testing.running(application / "topology.yaml") as made:
            assert made.shard_count == 4
            yield made


@pytest.fixture
def made(running: ShardFleet) -> ShardFleet:
    running.reset()
    return running


def connect(fleet: ShardFleet, shard: int, **options: Any) -> psycopg.Connection[Any]:
    path = f"-c search_path={fleet.schema(shard)}"
    dsn = fleet.dsn(fleet.node_of(shard), user="postgres")
    return psycopg.connect(dsn, options=path, **options)


def run(fleet: ShardFleet, shard: int, *statements: str) -> list[Any]:
    with connect(fleet, shard) as session:
        for statement in statements:
            cursor = session.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def require_fresh(fleet: ShardFleet) -> None:
    for shard in range(4):
        assert run(fleet, shard, "SELECT * FROM kinds ORDER BY id") == KINDS
        for table in ("things", "parts", '"odd ""name; %s"'):
            assert run(fleet, shard, f"SELECT count(*) FROM {table}") == [(0,)], table


def test_rows_of_tests_are_gone_and_ids_go_on(made: ShardFleet) -> None:
    require_fresh(made)
    insert = "INSERT INTO things (kind) VALUES (1) RETURNING id"
    before = [run(made, shard, insert)[0][0] for shard in range(4)]
    run(made, 2, f"INSERT INTO parts VALUES ({before[2]}, 3), ({before[2]}, 13)")
    run(made, 3, 'INSERT INTO "odd ""name; %s" VALUES (1)')
    made.reset()
    require_fresh(made)
    after = [run(made, shard, insert)[0][0] for shard in range(4)]
    assert all(new > old for new, old in zip(after, before, strict=True))
    made.reset()
    require_fresh(made)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE kinds SET name = 'other' WHERE id = 2",
        "DELETE FROM kinds WHERE id = 3",
        "SET session_replication_role = replica; TRUNCATE kinds CASCADE",
    ],
)
def test_rows_of_migrations_come_back(made: ShardFleet, change: str) -> None:
    run(made, 1, change)
    made.reset()
    require_fresh(made)
    run(made, 1, change)  # and once more: what was written again is known again
    made.reset()
    require_fresh(made)


def test_a_transaction_left_open_is_ended(
    made: ShardFleet, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(connect(made, 0)) as left:
        left.execute("INSERT INTO kinds (name) VALUES ('left')")
        with contextlib.closing(connect(made, 0)) as reading:
            reading.execute("SELECT * FROM kinds")
            made.reset()
            assert reading.execute("SELECT 1").fetchone() == (1,)
        assert "'left'" in caplog.text
        with pytest.raises(psycopg.OperationalError):
            left.commit()
    require_fresh(made)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emptying, "_PATIENCE_MS", 200)


@pytest.mark.usefixtures("impatient")
def test_a_writer_at_work_is_named_and_readers_beside_it_are_not(made: ShardFleet) -> None:
    run(made, 1, "INSERT INTO things DEFAULT VALUES", "INSERT INTO kinds (name) VALUES ('four')")
    with contextlib.ExitStack() as stack:
        reading, writing = (stack.enter_context(contextlib.closing(connect(made, 1))) for _ in "rw")
        reading.execute("TABLE kinds")
        writing.execute("LOCK TABLE kinds IN ROW EXCLUSIVE MODE")
        with raises_code("not_reset", match="kinds") as refused:
            made.reset()
        assert str(writing.info.backend_pid) in str(refused.value)
        assert f" {reading.info.backend_pid} " not in str(refused.value)
    made.reset()
    require_fresh(made)


@contextlib.contextmanager
def writing(fleet: ShardFleet, shard: int) -> Iterator[None]:
    """Hold a transaction open, as a framework does around each test, as the application's role."""
    path = f"-c search_path={fleet.schema(shard)}"
    with psycopg.connect(fleet.dsn(fleet.node_of(shard)), options=path) as session:
        session.execute("INSERT INTO things (kind) VALUES (3)")
        yield
        session.rollback()


def test_a_call_inside_of_a_tests_own_transaction_is_refused(
    made: ShardFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LASTING_S", 0.02)
    with ShardedDatabase(made.topology) as db:
        with writing(made, 2):
            for call in (
                lambda: db.select("id", "things", 2),
                lambda: db.insert("things", 2, {"kind": 1}),
                lambda: db.scatter("id", "things", limit=1),
                lambda: db.shard(2).__enter__(),
            ):
                with pytest.raises(WritesUnseen):
                    call()
            assert db.select("id", "things", 3) == []
        assert db.select("id", "things", 2) == []
    nodes = {node: made.dsn(node) for node in made.nodes}
    with ShardedDatabase(made.dsn("a"), nodes=nodes) as unaware, writing(made, 2):
        assert unaware.select("id", "things", 2) == []
