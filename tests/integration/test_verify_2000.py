"""What verify is judged by: on 2,000 shards, each fault is found and nothing else is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets import Fleet
from tests.fixtures.verifying import told, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.servers import PgServer

LIKES = (
    "CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL);"
    "CREATE INDEX likes_user_id_idx ON likes (user_id, id);"
)


@pytest.fixture(scope="module")
def large(
    safe_servers: dict[str, PgServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Give a healthy fleet of 2,000 shards that the tests of this module share."""
    one = Fleet(
        tmp_path_factory.mktemp("large"),
        safe_servers,
        "large",
        "large",
        shards={"a": "0-999", "b": "1000-1999"},
        count=2000,
    )
    one.migration(
        "0001_photos.sql", "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id());"
    )
    one.migration("0002_likes.sql", LIKES)
    one.init()
    yield one
    one.drop()


def test_a_healthy_fleet_has_no_finding(large: Fleet) -> None:
    assert verify(large) == []


REPLACED = (
    "DO $$ BEGIN EXECUTE format('CREATE OR REPLACE FUNCTION shard7.next_id() RETURNS bigint"
    " LANGUAGE sql AS %L', (SELECT prosrc FROM pg_proc"
    " WHERE pronamespace = 'shard8'::regnamespace AND proname = 'next_id')); END $$"
)
RECORDED = (
    "INSERT INTO shardctl.migration (shard, file, checksum) SELECT 1999, file, checksum"
    " FROM shardctl.migration WHERE shard = 1998 AND file = '0002_likes.sql'"
)

FAULTS = {
    "a table dropped in one shard": (
        "a",
        "DROP TABLE shard17.likes",
        "SET search_path TO shard17;"
        + LIKES
        + "GRANT SELECT, INSERT, UPDATE, DELETE ON likes TO large",
        ("structure", "table_missing", (17,), "likes"),
    ),
    "an index dropped in three": (
        "a",
        "".join(f"DROP INDEX shard{n}.likes_user_id_idx;" for n in (17, 204, 999)),
        "".join(
            f"CREATE INDEX likes_user_id_idx ON shard{n}.likes (user_id, id);"
            for n in (17, 204, 999)
        ),
        ("structure", "index_missing", (17, 204, 999), "likes_user_id_idx"),
    ),
    "a column's type changed": (
        "b",
        "ALTER TABLE shard1204.likes ALTER user_id TYPE integer",
        "ALTER TABLE shard1204.likes ALTER user_id TYPE bigint",
        ("structure", "column_differs", (1204,), "likes.user_id"),
    ),
    "next_id() replaced by another shard's": (
        "a",
        REPLACED,
        None,
        ("generator", "other_shard", (7,), "next_id()"),
    ),
    "a row inserted with another shard's id": (
        "b",
        "INSERT INTO shard1500.photos VALUES (shard1501.next_id())",
        "DELETE FROM shard1500.photos",
        ("ids", "other_shard", (1500,), "photos"),
    ),
    "a stray schema": (
        "a",
        "CREATE SCHEMA shard2000",
        "DROP SCHEMA shard2000",
        ("map", "stray_schema", (), "shard2000"),
    ),
    "a schema dropped": (
        "a",
        "ALTER SCHEMA shard3 RENAME TO away",
        "ALTER SCHEMA away RENAME TO shard3",
        ("map", "shard_missing", (3,), None),
    ),
    "a shard present on two nodes": (
        "b",
        "CREATE SCHEMA shard5; CREATE TABLE shard5.photos (id bigint)",
        "DROP SCHEMA shard5 CASCADE",
        ("map", "shard_twice", (5,), None),
    ),
    "a map row changed": (
        "b",
        "UPDATE shardctl.map SET node = 'b' WHERE shard = 5",
        "UPDATE shardctl.map SET node = 'a' WHERE shard = 5",
        ("map", "map_differs", (5,), None),
    ),
    "a sequence's grant revoked": (
        "a",
        "REVOKE USAGE ON SEQUENCE shard40.next_id_seq FROM large",
        None,
        ("generator", "not_granted", (40,), "next_id_seq"),
    ),
    "a migration row deleted": (
        "b",
        "DELETE FROM shardctl.migration WHERE shard = 1999 AND file = '0002_likes.sql'",
        RECORDED,
        ("migrations", "pending", (1999,), "0002_likes.sql"),
    ),
    "an inactive slot": (
        "a",
        "SELECT pg_create_physical_replication_slot('forgotten', true)",
        "SELECT pg_drop_replication_slot('forgotten')",
        ("leftovers", "slot_inactive", (), "forgotten"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_and_nothing_else_is_told(large: Fleet, fault: str) -> None:
    node, breaks, mends, (check, code, shards, name) = FAULTS[fault]
    large.execute(node, breaks)
    try:
        # Of shards, the node need not be told: the map has it.
        [found] = told(verify(large))
        assert (found[:2], found[3:]) == ((check, code), (shards, name))
    finally:
        if mends is None:
            large.init()  # what it makes, it mends
        else:
            large.execute(node, mends)
    assert verify(large) == []


def test_two_names_of_one_server_are_one_finding(large: Fleet) -> None:
    text = large.write().read_text()
    b, a = large.servers["b"].port, large.servers["a"].port
    # 127.1 is 127.0.0.1, but no comparison of texts can know that.
    large.file.write_text(
        text.replace(f"b: {{host: 127.0.0.1, port: {b}", f"b: {{host: '127.1', port: {a}")
    )
    done = large.here_as_written("verify")
    assert "node b: the same server as node a" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("error")] == [
        done.stdout.splitlines()[0]
    ]
    assert done.returncode == 1


def test_a_server_that_is_stopped_is_one_finding_and_the_others_are_checked(large: Fleet) -> None:
    large.servers["b"].stop()
    try:
        [finding] = verify(large)
    finally:
        large.servers["b"].start()
    assert (finding.check, finding.code, finding.node) == ("connection", "unreachable", "b")
