"""Connections in a shard, as PEP 249 says: closed ones reach no server, whoever has it next."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from shardctl.router import AsyncShardedDatabase, CommitUnknown, PoolSettings, ShardedDatabase
from tests.fixtures import breaking, storms
from tests.fixtures.fleets.routed import moved_by_hand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.fleets.fleet import Fleet

ONE = PoolSettings(max_size=1, timeout=5)
INSERT = "INSERT INTO photos (id, user_id) VALUES (%s, 2)"


@pytest.fixture
def db(fleet_routed: Fleet) -> Iterator[ShardedDatabase]:
    with ShardedDatabase(fleet_routed.topology(), pool=ONE) as made:
        yield made
        assert storms.missing_after(made) == {}


def ids(db: ShardedDatabase) -> list[int]:
    return [number for (number,) in db.select("id", "photos", 2, order_by="id")]


def test_commit_and_rollback_end_transactions_and_names_stay_the_shards(
    db: ShardedDatabase,
) -> None:
    connection = db.connection(2)
    connection.execute(INSERT, [1])
    connection.commit()
    connection.execute(INSERT, [2])
    connection.rollback()
    connection.execute(INSERT, [3])
    with connection.transaction():
        connection.execute(INSERT, [4])
    connection.commit()
    with connection.transaction():  # the outermost, as none has begun
        connection.execute(INSERT, [5])
    with connection.pipeline():
        connection.execute(INSERT, [6])
        connection.commit()
        connection.execute(INSERT, [7])
        connection.commit()
    connection.execute(INSERT, [8])
    connection.close()
    assert ids(db) == [1, 3, 4, 5, 6, 7]


def test_a_closed_connection_and_its_cursors_reach_no_server(db: ShardedDatabase) -> None:
    old = db.connection(2)
    cursor = old.cursor()
    cursor.execute(INSERT, [1])
    old.close()
    old.close()
    assert old.closed
    with db.shard(2) as new:
        assert new.pgconn is old.pgconn  # the only one
        new.execute(INSERT, [2])
        for use in (
            lambda: cursor.execute(INSERT, [3]),
            lambda: old.execute(INSERT, [3]),
            old.commit,
            old.rollback,
            old.cursor,
            lambda: old.transaction().__enter__(),
        ):
            with pytest.raises(psycopg.OperationalError, match="the connection is closed"):
                use()
        old.cancel()
        assert new.execute("SELECT count(*) FROM photos").fetchone() == (1,)
    assert ids(db) == [2]


def test_a_block_may_commit_and_close_by_itself(db: ShardedDatabase) -> None:
    with db.shard(2) as connection:
        connection.execute(INSERT, [1])
        connection.commit()
        connection.execute(INSERT, [2])
        connection.close()
    with db.shard(2) as connection:
        connection.execute(INSERT, [3])
        raise psycopg.Rollback
    with contextlib.suppress(KeyError), db.shard(2) as connection:
        connection.execute(INSERT, [4])
        raise KeyError
    assert ids(db) == [1]


def test_a_connection_is_a_context_manager_as_psycopgs(db: ShardedDatabase) -> None:
    with db.connection(2) as connection:
        connection.execute(INSERT, [1])
    assert connection.closed
    assert ids(db) == [1]


def test_autocommit_is_refused(db: ShardedDatabase) -> None:
    with db.connection(2) as connection:
        connection.commit()
        with pytest.raises(psycopg.NotSupportedError, match="autocommit"):
            connection.autocommit = True
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
        assert connection.execute("SELECT count(*) FROM photos").fetchone() == (0,)


def test_notices_go_to_who_has_the_connection(db: ShardedDatabase) -> None:
    heard: list[str | None] = []
    notice = "DO $$BEGIN RAISE NOTICE 'heard'; END$$"
    with db.shard(2) as connection:
        connection.add_notice_handler(lambda diag: heard.append(diag.message_primary))
        connection.execute(notice)
    with db.shard(2) as connection:
        connection.execute(notice)
    assert heard == ["heard"]


def test_what_settings_configure_is_there_every_time(fleet_routed: Fleet) -> None:
    checked: list[Any] = []

    def configure(connection: psycopg.Connection[Any]) -> None:
        from psycopg.types.numeric import FloatLoader

        connection.adapters.register_loader("numeric", FloatLoader)

    pool = PoolSettings(max_size=1, configure=configure, check=checked.append, row_factory=dict_row)
    with ShardedDatabase(fleet_routed.topology(), pool=pool) as db:
        db.insert("photos", 2, {"id": 1, "user_id": 2, "score": 1})
        for _ in range(2):
            assert list(db.select("score", "photos", 2)) == [{"score": 1.0}]  # type: ignore[comparison-overlap]
            with db.shard(2) as connection:
                found = connection.execute("SELECT score FROM photos").fetchone()
                assert found == {"score": 1.0}
                assert isinstance(found["score"], float)
        assert len(checked) >= 5
        assert [one.error for one in db.check().values()] == [None, None]


def test_a_commit_whose_answer_is_lost_is_told(fleet_routed: Fleet) -> None:
    with (
        breaking.at_commit(fleet_routed, "a", done=True) as topology,
        ShardedDatabase(topology, pool=ONE) as db,
    ):
        with pytest.raises(CommitUnknown), db.shard(2) as connection:
            connection.execute(INSERT, [1])
        connection = db.connection(2)
        connection.execute(INSERT, [2])
        with pytest.raises(CommitUnknown):
            connection.commit()
        connection.close()
    assert fleet_routed.query("a", "SELECT count(*) FROM shard2.photos") == [(2,)]


def test_a_moved_shard_needs_another_connection(fleet_routed: Fleet) -> None:
    with ShardedDatabase(fleet_routed.topology(), patience=30) as db:
        connection = db.connection(2)
        connection.commit()
        with moved_by_hand(fleet_routed, 2, "a", "b"):
            pass
        with pytest.raises(psycopg.errors.UndefinedTable) as told:
            connection.execute(INSERT, [1])
        assert db.settle(told.value, 2)
        connection.close()
        with db.connection(2) as connection:
            connection.execute(INSERT, [1])
        assert ids(db) == [1]


def test_tasks_have_the_same(fleet_routed: Fleet) -> None:
    async def work() -> Any:
        async with AsyncShardedDatabase(fleet_routed.topology(), pool=ONE) as db:
            old = await db.connection(2)
            await old.execute(INSERT, [1])
            await old.commit()
            await old.execute(INSERT, [2])
            cursor = old.cursor()
            await old.close()
            await old.close()
            async with db.shard(2) as new:
                with pytest.raises(psycopg.NotSupportedError, match="autocommit"):
                    await new.set_autocommit(True)
                await new.execute(INSERT, [3])
                for use in (lambda: cursor.execute(INSERT, [4]), old.commit, old.rollback):
                    with pytest.raises(psycopg.OperationalError, match="the connection is closed"):
                        await use()
            async with await db.connection(2) as connection:
                await connection.execute(INSERT, [5])
            rows = await db.select("id", "photos", 2, order_by="id")
            assert await storms.missing_after_tasks(db) == {}
            return rows

    assert asyncio.run(work()) == [(1,), (3,), (5,)]
