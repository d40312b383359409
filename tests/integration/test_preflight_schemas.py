"""What a source holds that no fence binds, or that a clone would duplicate."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.preflight import Movable


def test_prepared_transactions(preflight_fleet: Movable) -> None:
    begun = "BEGIN; INSERT INTO shard1.photos (user_id) VALUES (1); PREPARE TRANSACTION 'half'"
    with preflight_fleet.having(begun, "ROLLBACK PREPARED 'half'"):
        preflight_fleet.only_source("prepared_transactions")


def test_unlogged_tables(preflight_fleet: Movable) -> None:
    made = "CREATE UNLOGGED TABLE shard2.cache (id int)"
    with preflight_fleet.having(made, "DROP TABLE shard2.cache"):
        assert "shard2.cache" in preflight_fleet.only_source("unlogged")
    made = "CREATE UNLOGGED TABLE shard0.cache (id int)"  # which stays
    with preflight_fleet.having(made, "DROP TABLE shard0.cache"):
        assert preflight_fleet.beside_fit(source=preflight_fleet.look_at_source()) == {}


def test_large_objects(preflight_fleet: Movable) -> None:
    with preflight_fleet.having("SELECT lo_create(4711)", "SELECT lo_unlink(4711)"):
        preflight_fleet.only_source("large_objects")


PLAIN = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
CROSSING = {
    "a view": ("CREATE VIEW x AS SELECT * FROM shard2.photos", "view public.x"),
    "a view of a shard that stays": (
        "CREATE VIEW x AS SELECT * FROM shard0.photos",
        "view public.x",
    ),
    "a view between shards": ("CREATE VIEW shard0.x AS TABLE shard2.photos", "view shard0.x"),
    "a function in SQL": (
        """CREATE FUNCTION x() RETURNS void LANGUAGE sql
           BEGIN ATOMIC INSERT INTO shard2.photos VALUES (1, 1); END""",
        "function public.x()",
    ),
    "a foreign key": (
        "CREATE TABLE shard0.y (id bigint REFERENCES shard2.photos)",
        "constraint y_id_fkey on table shard0.y",
    ),
    "a default": (
        "CREATE TABLE shard0.y (id bigint DEFAULT nextval('shard2.next_id_seq'))",
        "default value for column id of table shard0.y",
    ),
    "a rule": (
        """CREATE VIEW x AS SELECT 1 AS id; CREATE RULE r AS ON INSERT TO x
           DO INSTEAD INSERT INTO shard2.photos VALUES (1, 1)""",
        "rule r on view public.x",
    ),
    "a trigger": (
        f"""CREATE FUNCTION shard2.y() {PLAIN}; CREATE TRIGGER y BEFORE INSERT ON shard0.photos
            FOR EACH ROW EXECUTE FUNCTION shard2.y()""",
        "trigger y on table shard0.photos",
    ),
    "a type": (
        """CREATE TYPE shard2.y AS ENUM ('a'); CREATE FUNCTION x() RETURNS shard2.y
           LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'""",
        "function public.x()",
    ),
}
CLEAR = """
DROP VIEW IF EXISTS x, shard0.x; DROP TABLE IF EXISTS shard0.y;
DROP TRIGGER IF EXISTS y ON shard0.photos; DROP FUNCTION IF EXISTS shard2.y, x;
DROP TYPE IF EXISTS shard2.y
"""


@pytest.mark.parametrize("kind", CROSSING)
def test_what_binds_by_more_than_a_name(preflight_fleet: Movable, kind: str) -> None:
    made, named = CROSSING[kind]
    with preflight_fleet.having(made, CLEAR):
        told = preflight_fleet.only_source("crossing")
    assert named in told


def test_tables_named_like_a_shards(preflight_fleet: Movable) -> None:
    preflight_fleet.choose(duplicate_shared=True)
    with preflight_fleet.having("CREATE TABLE public.photos (id int)", "DROP TABLE public.photos"):
        assert "public.photos" in preflight_fleet.only_source("table_shadowed")


def test_other_databases(preflight_fleet: Movable) -> None:
    server = preflight_fleet.fleet.servers["a"]
    with server.connect() as session:
        session.execute("CREATE DATABASE other")
    try:
        assert (
            preflight_fleet.beside_fit(source=preflight_fleet.look_at_source()) == {}
        )  # it is empty
        with server.connect("other") as session:
            session.execute("CREATE TABLE things (id int)")
        told = preflight_fleet.only_source("other_databases")
        assert "public.things" in told
        with barred(preflight_fleet, "other"):
            preflight_fleet.only_source("database_closed")
        preflight_fleet.choose(duplicate_shared=True)
        assert "other" in preflight_fleet.source_notes()
    finally:
        with server.connect() as session:
            session.execute("DROP DATABASE other WITH (FORCE)")


@contextmanager
def barred(preflight_fleet: Movable, database: str) -> Iterator[None]:
    """Let nobody into a database of node a."""
    file = preflight_fleet.server().data_directory / "pg_hba.conf"
    rules = file.read_text()

    def write(text: str) -> None:
        file.write_text(text)
        with preflight_fleet.fleet.servers["a"].connect() as session:
            session.execute("SELECT pg_reload_conf()")

    def is_open() -> bool:
        try:
            preflight_fleet.fleet.servers["a"].connect(database).close()
        except psycopg.OperationalError:
            return False
        return True

    write(f"host {database} all all reject\n{rules}")
    try:
        wait_for(lambda: not is_open())
        yield
    finally:
        write(rules)
        wait_for(is_open)


def test_collations_of_another_version(preflight_fleet: Movable) -> None:
    with preflight_fleet.having(
        "CREATE COLLATION public.german (provider = icu, locale = 'de');"
        "CREATE TABLE shard2.y (name text COLLATE public.german)",
        "DROP TABLE shard2.y; DROP COLLATION public.german",
    ):
        assert preflight_fleet.beside_fit(source=preflight_fleet.look_at_source()) == {}
        changed = "UPDATE pg_collation SET collversion = '1.1' WHERE collname = 'german'"
        preflight_fleet.fleet.execute("a", changed)
        told = preflight_fleet.only_source("collation")
    assert "public.german" in told
