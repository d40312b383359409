"""What verify is judged by: in 2,000 shards it finds every fault, and tells nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.fleet import Fleet
from tests.fixtures.fleets.rolled_back import RolledBack, undone
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.servers.postgres import PgServer

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
FAULTS = {
    "a table dropped in one shard": (
        "a",
        "DROP TABLE shard17.likes",
        ("structure", "table_missing", (17,), "likes"),
    ),
    "an index dropped in three": (
        "a",
        "".join(f"DROP INDEX shard{n}.likes_user_id_idx;" for n in (18, 204, 999)),
        ("structure", "index_missing", (18, 204, 999), "likes_user_id_idx"),
    ),
    "a column's type changed": (
        "b",
        "ALTER TABLE shard1204.likes ALTER user_id TYPE integer",
        ("structure", "column_differs", (1204,), "likes.user_id"),
    ),
    "next_id() replaced by another shard's": (
        "a",
        REPLACED,
        ("generator", "other_shard", (7,), "next_id()"),
    ),
    "a row inserted with another shard's id": (
        "b",
        "INSERT INTO shard1500.photos VALUES (shard1501.next_id())",
        ("ids", "other_shard", (1500,), "photos"),
    ),
    "a stray schema": (
        "a",
        "CREATE SCHEMA shard2000",
        ("map", "stray_schema", (), "shard2000"),
    ),
    "a schema dropped": (
        "a",
        "ALTER SCHEMA shard3 RENAME TO away",
        ("map", "shard_missing", (3,), None),
    ),
    "a shard present on two nodes": (
        "b",
        "CREATE SCHEMA shard5; CREATE TABLE shard5.photos (id bigint)",
        ("map", "shard_twice", (5,), None),
    ),
    "a map row changed": (
        "b",
        "UPDATE shardctl.map SET node = 'b' WHERE shard = 6",
        ("map", "map_differs", (6,), None),
    ),
    "a sequence's grant revoked": (
        "a",
        "REVOKE USAGE ON SEQUENCE shard40.next_id_seq FROM large",
        ("generator", "not_granted", (40,), "next_id_seq"),
    ),
    "a migration row deleted": (
        "b",
        "DELETE FROM shardctl.migration WHERE shard = 1999 AND file = '0002_likes.sql'",
        ("migrations", "pending", (1999,), "0002_likes.sql"),
    ),
    "an inactive slot": (
        "a",
        "SELECT pg_create_physical_replication_slot('forgotten', true)",
        ("leftovers", "slot_inactive", (), "forgotten"),
    ),
}
"""What is broken on which node, and the one finding of it."""


def test_each_fault_is_found_once_and_nothing_else_is_told(large: Fleet) -> None:
    with undone(RolledBack(large)) as broken:
        for node, breaks, _ in FAULTS.values():
            broken.execute(node, breaks)
        try:
            # Of shards, the node need not be told: the map has it.
            found = [(one[:2], *one[3:]) for one in told(broken.verify())]
        finally:
            broken.execute("a", "SELECT pg_drop_replication_slot('forgotten')")
    expected = [((check, code), *what) for _, _, (check, code, *what) in FAULTS.values()]
    assert sorted(found, key=str) == sorted(expected, key=str)
