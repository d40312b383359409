"""The digest of a structure on every major version: it sees all that a copy would lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.access import structure_digest
from shardctl.postgres import queries
from tests.fixtures.moves.fenced import SCHEMA, Fenced

if TYPE_CHECKING:
    from psycopg import sql

    from shardctl.postgres.connection import Connection

COPIED = """
CREATE TABLE shard2.people (id bigint PRIMARY KEY, name text);
INSERT INTO shard2.people SELECT n, 'x' FROM generate_series(1, 50) AS n;
CREATE VIEW shard2.named AS SELECT name FROM shard2.people;
CREATE MATERIALIZED VIEW shard2.empty AS SELECT name FROM shard2.people WITH NO DATA;
CREATE SEQUENCE shard2.numbers;
CREATE DOMAIN shard2.short AS text CHECK (length(VALUE) < 9);
CREATE POLICY seen ON shard2.people USING (true);
CREATE STATISTICS shard2.many ON id, name FROM shard2.people;
CREATE FUNCTION shard2.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER t AFTER INSERT ON shard2.people FOR EACH ROW EXECUTE FUNCTION shard2.t();
CREATE TABLE shard2.pets (owner bigint REFERENCES shard2.people, at integer, note text);
CREATE INDEX lower ON shard2.pets (lower(note));
CREATE TABLE shard2.days (day date) PARTITION BY RANGE (day);
CREATE TEXT SEARCH CONFIGURATION shard2.words (COPY = simple)
"""
LOST = {
    # Relations
    "GRANT SELECT ON shard2.people TO PUBLIC": "people",
    "GRANT SELECT (name) ON shard2.people TO PUBLIC": "people",
    "ALTER TABLE shard2.people OWNER TO pg_monitor": "people",
    "ALTER TABLE shard2.people SET (fillfactor = 70)": "people",
    "ALTER TABLE shard2.people SET (toast.autovacuum_enabled = false)": "people",
    "ALTER TABLE shard2.people REPLICA IDENTITY FULL": "people",
    "ALTER TABLE shard2.people ENABLE ROW LEVEL SECURITY": "people",
    "REFRESH MATERIALIZED VIEW shard2.empty": "empty",
    "CREATE TABLE shard2.new (id bigint)": "new",
    "CREATE TABLE shard2.today PARTITION OF shard2.days DEFAULT": "today",
    "ALTER TABLE shard2.days DETACH PARTITION shard2.today": "today",
    # Columns
    "ALTER TABLE shard2.photos ALTER id TYPE bigint USING id + 1": "photos",
    "ALTER TABLE shard2.photos ADD extra integer DEFAULT 7": "photos",
    "ALTER TABLE shard2.photos ADD at timestamptz DEFAULT clock_timestamp()": "photos",
    "ALTER TABLE shard2.photos ALTER extra SET DEFAULT 8": "photos",
    "ALTER TABLE shard2.photos DROP extra": "photos",
    "ALTER TABLE shard2.photos RENAME TO images": "photos",
    "DROP TABLE shard2.images; CREATE TABLE shard2.images (id bigint)": "images",
    # Constraints
    "ALTER TABLE shard2.images ADD CONSTRAINT positive CHECK (id > 0) NOT VALID": "images",
    "ALTER TABLE shard2.images VALIDATE CONSTRAINT positive": "images",
    "ALTER TABLE shard2.pets ALTER CONSTRAINT pets_owner_fkey DEFERRABLE": "pets",
    "ALTER TABLE shard2.pets DROP CONSTRAINT pets_owner_fkey, ADD CONSTRAINT pets_owner_fkey"
    " FOREIGN KEY (owner) REFERENCES shard2.people ON DELETE CASCADE DEFERRABLE": "pets",
    # Indexes
    "CREATE INDEX CONCURRENTLY owned ON shard2.pets (owner)": "pets",
    "ALTER INDEX shard2.owned RENAME TO owners": "pets",
    "ALTER INDEX shard2.owners SET (fillfactor = 70)": "pets",
    "DROP INDEX shard2.owners; CREATE INDEX owners ON shard2.pets (owner DESC)"
    " WITH (fillfactor = 70)": "pets",
    "ALTER INDEX shard2.lower ALTER COLUMN 1 SET STATISTICS 7": "pets",
    # Triggers, policies, rules, statistics
    "ALTER TABLE shard2.people DISABLE TRIGGER t": "people",
    "ALTER TABLE shard2.pets DISABLE TRIGGER ALL": "pets",
    "ALTER POLICY seen ON shard2.people USING (false)": "people",
    "CREATE OR REPLACE VIEW shard2.named AS SELECT upper(name) AS name FROM shard2.people": "named",
    "CREATE STATISTICS shard2.more (dependencies) ON id, name FROM shard2.people": "people",
    # Objects of other kinds
    "ALTER SCHEMA shard2 OWNER TO pg_monitor": "",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA shard2 GRANT SELECT ON TABLES TO PUBLIC": "",
    "ALTER SEQUENCE shard2.numbers INCREMENT 3": "numbers",
    "ALTER DOMAIN shard2.short SET NOT NULL": "type short",
    "ALTER DOMAIN shard2.short ADD CHECK (VALUE <> 'x')": "type short",
    "ALTER TYPE shard2.mood ADD VALUE 'bad'": "type mood",
    "ALTER FUNCTION shard2.f() STABLE": "function f",
    "CREATE OPERATOR shard2.=== (FUNCTION = int4eq, LEFTARG = integer, RIGHTARG = integer)": (
        "operator ==="
    ),
    "CREATE OPERATOR CLASS shard2.own FOR TYPE integer USING btree"
    " AS FUNCTION 1 btint4cmp(integer, integer)": "operator class own",
    "ALTER OPERATOR FAMILY shard2.own USING btree ADD OPERATOR 1 < (integer, integer)": (
        "operator family own"
    ),
    "ALTER OPERATOR FAMILY shard2.own USING btree"
    " ADD FUNCTION 1 (bigint, bigint) btint8cmp(bigint, bigint)": "operator family own",
    "CREATE COLLATION shard2.c (provider = libc, locale = 'C')": "collation c",
    "CREATE CONVERSION shard2.own FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8": "conversion own",
    "ALTER TEXT SEARCH CONFIGURATION shard2.words ALTER MAPPING FOR word WITH english_stem": (
        "text search configuration words"
    ),
    "CREATE TEXT SEARCH DICTIONARY shard2.plainly (TEMPLATE = simple)": (
        "text search dictionary plainly"
    ),
}
"""What a copied structure would lack, and no lock of a writer shows; and the object to be named."""
REWRITING = "TRUNCATE shard2.photos"
USE = (
    "INSERT INTO shard2.people SELECT n, 'y' FROM generate_series(51, 5000) AS n",
    "UPDATE shard2.people SET name = 'z' WHERE id < 900",
    "DELETE FROM shard2.people WHERE id > 4000",
    "SELECT nextval('shard2.numbers'), setval('shard2.numbers', 70)",
    "VACUUM shard2.people",
    "COMMENT ON TABLE shard2.pets IS 'a comment'",
    "VACUUM (FREEZE) pg_catalog.pg_class",
    "CREATE TABLE public.elsewhere (id bigint PRIMARY KEY)",
    REWRITING,
    "VACUUM FULL shard2.people",
    "CLUSTER shard2.people USING people_pkey",
    "REINDEX TABLE CONCURRENTLY shard2.people",
    "REINDEX TABLE CONCURRENTLY shard2.pets",
    "ALTER SCHEMA shard2 RENAME TO retired",
)
"""What changes nothing of the structure; from the first that is REWRITING, it writes catalogs."""


def looked(session: Connection, schema: str) -> tuple[str, structure_digest.Parts]:
    return structure_digest.digest(session, [schema]), structure_digest.parts(session, [schema])


def changed(session: Connection, written: tuple[str, sql.Composed]) -> bool:
    """Read the rows again."""
    total, query = written
    return bool(queries.rows_of_last(session, query)[0][0] != total)


def versions(session: Connection, schema: str) -> tuple[str, sql.Composed]:
    digest, total, _, query = structure_digest.known(session, [schema])
    assert digest == structure_digest.digest(session, [schema])
    assert not changed(session, (total, query))
    return total, query


def test_the_digest_of_a_structure_sees_all_that_a_copy_would_lack(fenced: Fenced) -> None:
    session = fenced.session
    session.execute(COPIED.encode())
    seen, parts = looked(session, SCHEMA)
    written = versions(session, SCHEMA)
    for statement, name in LOST.items():
        session.execute(statement.encode())
        digest, now = looked(session, SCHEMA)
        assert digest != seen, statement
        assert changed(session, written), statement
        written = versions(session, SCHEMA)
        told = list(structure_digest.changes(parts, now))
        assert any(one.startswith(f"shard2.{name} " if name else "schema ") for one in told), told
        seen, parts = digest, now


def test_the_digest_of_a_structure_does_not_see_its_use(fenced: Fenced) -> None:
    session = fenced.session
    session.execute(COPIED.encode())
    seen, parts = looked(session, SCHEMA)
    written = versions(session, SCHEMA)
    for statement in USE:
        if statement == REWRITING:
            assert not changed(session, written)
        session.execute(statement.encode())
    digest, now = looked(session, "retired")
    assert digest == seen
    assert [*structure_digest.changes(parts, now)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "GRANT SELECT ON shard2.photos TO PUBLIC",
        "ALTER FUNCTION shard2.f() STABLE",
        "TRUNCATE shard2.photos",
    ],
)
def test_a_session_that_has_not_committed_a_change_without_a_lock_is_found(
    fenced: Fenced, statement: str
) -> None:
    seen = structure_digest.digest(fenced.session, [SCHEMA])
    assert structure_digest.changing(fenced.session, [SCHEMA]) == []
    fenced.other.execute(statement.encode())
    pid = fenced.other.info.backend_pid
    assert structure_digest.changing(fenced.session, [SCHEMA]) == [pid]
    assert structure_digest.digest(fenced.session, [SCHEMA]) == seen
    fenced.other.rollback()
    assert structure_digest.changing(fenced.session, [SCHEMA]) == []
