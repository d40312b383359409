"""Structure by pg_dump and pg_restore: all of it arrives, in two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.hosts.local import Local
from shardctl.postgres import binaries
from shardctl.postgres.logical import structure
from shardctl.postgres.slots import end_sessions
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.streams import NAME, SCHEMA

if TYPE_CHECKING:
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
    programs = binaries.find_clients(streamed.major)
    node = (streamed.route.source, streamed.route.target)[server]
    argv = [programs.program("pg_dump"), *DUMP, f"--dbname={streamed.route.conninfo(node, {})}"]
    lines = Local().run(argv).stdout.splitlines()
    return sorted(line for line in lines if not line.startswith("\\"))


DEFAULTS = (
    "REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
    "REVOKE USAGE ON TYPES FROM PUBLIC",
    "GRANT ALL ON TABLES TO reader WITH GRANT OPTION",
    "REVOKE DELETE ON TABLES FROM postgres",
    "GRANT USAGE ON SEQUENCES TO PUBLIC",
)
RIGHTS = """
SELECT name, array_agg(a::text ORDER BY a::text) FROM (
    SELECT 'relation ' || relname, coalesce(
               relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))
    FROM pg_class WHERE relnamespace = 'shard2'::regnamespace AND relkind NOT IN ('i', 'c')
    UNION ALL SELECT 'function ' || proname, coalesce(proacl, acldefault('f', proowner))
              FROM pg_proc WHERE pronamespace = 'shard2'::regnamespace
    UNION ALL SELECT 'type ' || typname, coalesce(typacl, acldefault('T', typowner))
              FROM pg_type WHERE typnamespace = 'shard2'::regnamespace
) AS found (name, acl) CROSS JOIN unnest(acl) AS a GROUP BY name ORDER BY name
"""


BROKEN_OFF = (
    "",
    (
        "DROP INDEX shard2.people_lower_idx; DROP POLICY own ON shard2.people;"
        " DROP STATISTICS shard2.many; DROP TRIGGER touch ON shard2.people;"
        # As between a partition's index and its place in that of the table.
        " ALTER TABLE shard2.days DROP CONSTRAINT days_pkey; DROP INDEX shard2.days_note_idx;"
        " DROP TRIGGER touched ON shard2.days; ALTER TABLE shard2.days_1 ADD PRIMARY KEY (day);"
        " CREATE INDEX ON shard2.days_1 (note)"
    ),
)
"""What takes away some of the second part."""


def test_rights_are_those_of_the_source_whatever_the_target_gives_by_default(
    streamed: Streamed,
) -> None:
    """Also where the second part was broken off, and is made again."""
    streamed.make(
        *STRUCTURE,
        "ALTER TABLE people ADD CONSTRAINT low CHECK (boss < 5) NOT VALID",
        "CREATE RULE kept AS ON DELETE TO people DO INSTEAD NOTHING",
        "CREATE POLICY own ON people USING (name = current_user)",
        "ALTER TABLE people ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE people REPLICA IDENTITY USING INDEX people_pkey",
        "CREATE TABLE days (day int PRIMARY KEY, note text, person bigint REFERENCES people)"
        " PARTITION BY RANGE (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (0) TO (10)",
        "CREATE INDEX ON days (note)",
        "CREATE TRIGGER touched BEFORE UPDATE ON days FOR EACH ROW EXECUTE FUNCTION touch()",
        "ALTER TABLE days_1 DISABLE TRIGGER touched",
        "ALTER TABLE people OWNER TO owning",
        "CREATE PROCEDURE work() LANGUAGE sql AS 'SELECT 1'",
        "CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int)",
        'CREATE FUNCTION "odd ""name"(VARIADIC text[]) RETURNS int LANGUAGE sql RETURN 1',
        "CREATE FUNCTION kept() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "REVOKE ALL ON FUNCTION kept() FROM PUBLIC",
        "CREATE TYPE pair AS (one int)",
        "CREATE TYPE color AS ENUM ('red')",
        "CREATE TYPE span AS RANGE (subtype = int4)",
        "CREATE DOMAIN short AS text",
        "REVOKE USAGE ON DOMAIN short FROM PUBLIC",
        "CREATE MATERIALIZED VIEW late AS SELECT id, name FROM people GROUP BY id WITH NO DATA",
        "CREATE MATERIALIZED VIEW shown AS SELECT id, name FROM people GROUP BY id WITH NO DATA",
        "CREATE VIEW later AS SELECT * FROM late",
        "GRANT SELECT ON shown TO app",
        "GRANT SELECT ON named TO app WITH GRANT OPTION",
    )
    for one in DEFAULTS:
        streamed.target.execute(f"ALTER DEFAULT PRIVILEGES {one}".encode())
    structure.make_tables(streamed.route, [SCHEMA], major=streamed.major)
    structure.make_rest(streamed.route, [SCHEMA], major=streamed.major, jobs=2)
    wanted, rights = dumped(streamed, 0), streamed.source.execute(RIGHTS).fetchall()
    file = "SELECT pg_relation_filenode('shard2.people'), 'shard2.people'::regclass::oid"
    rows = streamed.target.execute(file).fetchall()
    for broken in BROKEN_OFF:
        assert streamed.target.execute(RIGHTS).fetchall() == rights
        assert dumped(streamed, 1) == wanted
        streamed.target.execute(broken.encode())
        structure.make_rest(streamed.route, [SCHEMA], major=streamed.major, jobs=2, again=True)
    assert streamed.target.execute(RIGHTS).fetchall() == rights
    assert dumped(streamed, 1) == wanted
    assert streamed.target.execute(file).fetchall() == rows


def test_what_the_target_lacks_is_named(streamed: Streamed) -> None:
    streamed.make(
        "CREATE FUNCTION public.twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2'",
        "CREATE TABLE numbers (n int DEFAULT public.twice(1))",
    )
    with raises_code("structure_not_made", match=r"public\.twice"):
        structure.make_tables(streamed.route, [SCHEMA], major=streamed.major)


def test_what_a_killed_shardctl_has_left_running_is_ended(streamed: Streamed) -> None:
    left = streamed.client(1, application_name=NAME)
    other = streamed.client(1, application_name="other")
    end_sessions(streamed.target, NAME)
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    other.execute("SELECT 1")
    end_sessions(streamed.target, NAME)
    other.execute("SELECT 1")
