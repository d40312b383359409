"""Structure by pg_dump and pg_restore: all of it arrives, in two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.errors import Refused
from shardctl.hosts.local import Local
from shardctl.postgres import binaries
from shardctl.postgres.logical import clients, structure
from shardctl.postgres.logical.route import end_sessions
from tests.fixtures.servers.streams import NAME, SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.servers.streams import Streamed

STRUCTURE = (
    "CREATE TABLE people (id bigint PRIMARY KEY, name text UNIQUE, boss bigint REFERENCES people)",
    "CREATE INDEX ON people (lower(name))",
    "CREATE VIEW named AS SELECT name FROM people",
    "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "CREATE TRIGGER touch BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION touch()",
    "CREATE SEQUENCE numbers START 7",
    "CREATE STATISTICS many ON id, name FROM people",
    "COMMENT ON SCHEMA shard2 IS 'of people; with $$ and ''quotes'''",
    "GRANT SELECT ON people TO reader",
    "GRANT UPDATE (name) ON people TO app",
    "GRANT USAGE ON SCHEMA shard2 TO reader",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA shard2 GRANT SELECT ON TABLES TO reader",
    "ALTER TABLE people REPLICA IDENTITY FULL",
    "CREATE PUBLICATION others FOR TABLE people",
)
DUMP = ["--schema-only", f"--schema={SCHEMA}", "--no-publications", "--no-acl"]


def dumped(streamed: Streamed, server: int) -> list[str]:
    """Give the schema as pg_dump writes it, in any order, without what is granted."""
    programs = clients.find(streamed.major)
    node = (streamed.route.source, streamed.route.target)[server]
    argv = [programs.program("pg_dump"), *DUMP, f"--dbname={streamed.route.conninfo(node, {})}"]
    lines = Local().run(argv).stdout.splitlines()
    return sorted(line for line in lines if not line.startswith("\\"))


def test_all_of_the_structure_arrives_in_two_parts(streamed: Streamed) -> None:
    streamed.make(*STRUCTURE)
    structure.make_tables(streamed.route, [SCHEMA], major=streamed.major)
    indexes = "SELECT FROM pg_index WHERE indrelid = 'shard2.people'::regclass"
    assert streamed.target.execute(indexes).fetchall() == []
    owns = "SELECT has_schema_privilege('reader', 'shard2', 'USAGE')"
    assert streamed.target.execute(owns).fetchone() == (False,)
    structure.make_rest(streamed.route, [SCHEMA], major=streamed.major, jobs=2)
    assert dumped(streamed, 1) == dumped(streamed, 0)
    acls = "SELECT relname, relacl::text FROM pg_class WHERE relname = 'people'"
    assert streamed.target.execute(acls).fetchall() == streamed.source.execute(acls).fetchall()
    columns = "SELECT attacl::text FROM pg_attribute WHERE attacl IS NOT NULL AND attnum = 2"
    assert (
        streamed.target.execute(columns).fetchall() == streamed.source.execute(columns).fetchall()
    )
    structure.drop(streamed.target, [SCHEMA])
    structure.drop(streamed.target, [SCHEMA])
    gone = "SELECT FROM pg_namespace WHERE nspname = 'shard2'"
    assert streamed.target.execute(gone).fetchall() == []


def test_what_the_target_lacks_is_named(streamed: Streamed) -> None:
    streamed.make(
        "CREATE FUNCTION public.twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2'",
        "CREATE TABLE numbers (n int DEFAULT public.twice(1))",
    )
    with pytest.raises(Refused, match=r"node c: psql .* public\.twice") as refused:
        structure.make_tables(streamed.route, [SCHEMA], major=streamed.major)
    assert refused.value.code == "structure_not_made"


def test_a_schema_that_is_not_there_is_refused(streamed: Streamed) -> None:
    with pytest.raises(Refused, match="node a: pg_dump could not read the structure: no matching"):
        structure.make_tables(streamed.route, ["missing"], major=streamed.major)


def test_programs_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(
        Refused, match="of PostgreSQL 99 or newer are not installed here"
    ) as refused:
        clients.find(99)
    assert "install postgresql-client-99" in refused.value.hint
    assert clients.find(15).major == 15
    monkeypatch.setenv(binaries.VARIABLE, str(tmp_path))
    assert clients.find(15).major == 15


def test_what_a_killed_shardctl_has_left_running_is_ended(streamed: Streamed) -> None:
    left = streamed.client(1, application_name=NAME)
    other = streamed.client(1, application_name="other")
    assert end_sessions(streamed.target, NAME) == 1
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    other.execute("SELECT 1")
    assert end_sessions(streamed.target, NAME) == 0


@pytest.mark.embedded
def test_the_oldest_programs_that_can_read_both_servers_are_taken() -> None:
    assert clients.find(16).major == 16
    assert clients.find(17).major == 18
