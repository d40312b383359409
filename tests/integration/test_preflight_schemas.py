"""What a source holds that no fence binds, or that a clone would duplicate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.servers.clones import rules
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.preflight import Movable


REFUSED = {
    "a prepared transaction": (
        "prepared_transactions",
        "BEGIN; INSERT INTO shard1.photos (user_id) VALUES (1); PREPARE TRANSACTION 'half'",
        "ROLLBACK PREPARED 'half'",
        "half",
    ),
    "a large object": ("large_objects", "SELECT lo_create(4711)", "SELECT lo_unlink(4711)", ""),
    "an unlogged table": (
        "unlogged",
        "CREATE UNLOGGED TABLE shard2.cache (id int); CREATE UNLOGGED TABLE shard0.cache (id int)",
        "DROP TABLE shard2.cache, shard0.cache",
        "shard2.cache",
    ),
    "a table named like a shard's": (
        "table_shadowed",
        "CREATE TABLE public.photos (id int)",
        "DROP TABLE public.photos",
        "public.photos",
    ),
    "a view between shards": (
        "crossing",
        "CREATE VIEW shard0.x AS TABLE shard2.photos",
        "DROP VIEW shard0.x",
        "view shard0.x",
    ),
    "a function in SQL": (
        "crossing",
        """CREATE FUNCTION x() RETURNS void LANGUAGE sql
           BEGIN ATOMIC INSERT INTO shard2.photos VALUES (1, 1); END""",
        "DROP FUNCTION x",
        "function public.x()",
    ),
    "a foreign key": (
        "crossing",
        "CREATE TABLE shard0.y (id bigint REFERENCES shard2.photos)",
        "DROP TABLE shard0.y",
        "constraint y_id_fkey on table shard0.y",
    ),
    "a trigger": (
        "crossing",
        """CREATE FUNCTION shard2.y() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
           CREATE TRIGGER y BEFORE INSERT ON shard0.photos FOR EACH ROW
           EXECUTE FUNCTION shard2.y()""",
        "DROP FUNCTION shard2.y CASCADE",
        "trigger y on table shard0.photos",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_fence_binds_or_a_clone_would_duplicate(
    preflight_fleet: Movable, kind: str
) -> None:
    preflight_fleet.choose(duplicate_shared=True)
    code, made, undone, named = REFUSED[kind]
    with preflight_fleet.having(made, undone):
        assert named in preflight_fleet.only(code, "source")


def test_other_databases(preflight_fleet: Movable) -> None:
    server = preflight_fleet.fleet.servers["a"]
    with server.connect() as session:
        session.execute("CREATE DATABASE other")
    try:
        assert preflight_fleet.refused(part="source") == {}  # it is empty
        with server.connect("other") as session:
            session.execute("CREATE TABLE things (id int)")
        told = preflight_fleet.only("other_databases", "source")
        assert "public.things" in told
        with rules(server, "host other all all reject\nhost all all all trust\n"):
            wait_for(lambda: "database_closed" in preflight_fleet.refused(part="source"))
        preflight_fleet.choose(duplicate_shared=True)
        assert preflight_fleet.refused(part="source") == {}
    finally:
        with server.connect() as session:
            session.execute("DROP DATABASE other WITH (FORCE)")


def test_subscriptions(preflight_fleet: Movable) -> None:
    made = (
        "CREATE SUBSCRIPTION sub CONNECTION 'host=/nowhere' PUBLICATION p"
        " WITH (connect = false, slot_name = NONE)"
    )
    drop = "ALTER SUBSCRIPTION sub DISABLE; ALTER SUBSCRIPTION sub SET (slot_name = NONE)"
    with preflight_fleet.having(made, "DROP SUBSCRIPTION sub"):
        assert preflight_fleet.refused(part="source") == {}  # disabled, and of no moved table
        preflight_fleet.fleet.execute("a", "ALTER SUBSCRIPTION sub SET (slot_name = 'sub')")
        with preflight_fleet.having("ALTER SUBSCRIPTION sub ENABLE", drop):
            preflight_fleet.only("subscriptions", "source")
