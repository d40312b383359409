"""The digest of a structure on every major version: it sees all that a copy would lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.access import structure_digest
from tests.fixtures.moves.fenced import SCHEMA, Fenced

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

COPIED = """
CREATE TABLE shard2.people (id bigint PRIMARY KEY, name text);
INSERT INTO shard2.people SELECT n, 'x' FROM generate_series(1, 50) AS n;
CREATE VIEW shard2.named AS SELECT name FROM shard2.people;
CREATE MATERIALIZED VIEW shard2.empty AS SELECT name FROM shard2.people WITH NO DATA;
CREATE SEQUENCE shard2.numbers;
CREATE DOMAIN shard2.short AS text CHECK (length(VALUE) < 9);
CREATE TYPE shard2.span AS RANGE (subtype = float8);
CREATE POLICY seen ON shard2.people USING (true);
CREATE STATISTICS shard2.many ON id, name FROM shard2.people;
"""
NAMED = """
CREATE UNIQUE INDEX by_name ON shard2.people (name, id);
CREATE FUNCTION shard2.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER t AFTER INSERT ON shard2.people FOR EACH ROW EXECUTE FUNCTION shard2.t();
CREATE TABLE shard2.pets (id bigint PRIMARY KEY, owner bigint REFERENCES shard2.people);
CREATE TABLE shard2.days (day date) PARTITION BY RANGE (day)
"""
MORE = """
CREATE TYPE shard2.pair AS (a integer, b text);
CREATE TABLE shard2.pets (owner bigint, at integer, note text,
    CONSTRAINT owned FOREIGN KEY (owner) REFERENCES shard2.people,
    CONSTRAINT one UNIQUE (at) DEFERRABLE);
ALTER TABLE shard2.pets ADD CONSTRAINT noted CHECK (note <> '') NOT VALID;
CREATE INDEX plain ON shard2.pets (note);
CREATE INDEX lower ON shard2.pets (lower(note));
CREATE FUNCTION shard2.touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER touched BEFORE INSERT ON shard2.pets FOR EACH ROW EXECUTE FUNCTION shard2.touch();
CREATE TEXT SEARCH CONFIGURATION shard2.words (COPY = simple)
"""
LOST = {
    "ALTER POLICY seen ON shard2.people USING (false)": "people",
    "CREATE OR REPLACE VIEW shard2.named AS SELECT upper(name) AS name FROM shard2.people": "named",
    "CREATE RULE none AS ON DELETE TO shard2.people DO INSTEAD NOTHING": "people",
    "REFRESH MATERIALIZED VIEW shard2.empty": "empty",
    "GRANT SELECT ON shard2.people TO PUBLIC": "people",
    "REVOKE SELECT ON shard2.people FROM PUBLIC": "people",
    "GRANT SELECT (name) ON shard2.people TO PUBLIC": "people",
    "ALTER TABLE shard2.people OWNER TO pg_monitor": "people",
    "GRANT USAGE ON SCHEMA shard2 TO PUBLIC": "",
    "ALTER SCHEMA shard2 OWNER TO pg_monitor": "",
    "ALTER SEQUENCE shard2.numbers INCREMENT 3": "numbers",
    "ALTER SEQUENCE shard2.numbers CYCLE": "numbers",
    "ALTER DOMAIN shard2.short SET NOT NULL": "type short",
    "ALTER DOMAIN shard2.short ADD CHECK (VALUE <> 'x')": "type short",
    "CREATE DOMAIN shard2.long AS text": "type long",
    "ALTER TYPE shard2.mood ADD VALUE 'bad'": "type mood",
    "ALTER TYPE shard2.mood RENAME VALUE 'good' TO 'fine'": "type mood",
    "GRANT USAGE ON TYPE shard2.span TO pg_monitor": "type span",
    "CREATE STATISTICS shard2.more (dependencies) ON id, name FROM shard2.people": "people",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA shard2 GRANT SELECT ON TABLES TO PUBLIC": "",
    "CREATE TABLE shard2.new (id bigint)": "new",
    "ALTER TABLE shard2.photos ALTER id TYPE bigint USING id + 1": "photos",
    "ALTER TABLE shard2.photos ADD extra integer DEFAULT 7": "photos",
    "ALTER TABLE shard2.photos ADD at timestamptz DEFAULT clock_timestamp()": "photos",
    "ALTER TABLE shard2.photos ALTER extra SET DEFAULT 8": "photos",
    "ALTER TABLE shard2.photos ALTER extra SET NOT NULL": "photos",
    "ALTER TABLE shard2.photos DROP extra": "photos",
    "ALTER TABLE shard2.photos RENAME at TO moment": "photos",
    "ALTER TABLE shard2.photos RENAME TO images": "photos",
    "ALTER TABLE shard2.images ADD CONSTRAINT positive CHECK (id > 0) NOT VALID": "images",
    "ALTER TABLE shard2.images VALIDATE CONSTRAINT positive": "images",
    "ALTER TABLE shard2.images SET (fillfactor = 70)": "images",
    "DROP TABLE shard2.images; CREATE TABLE shard2.images (id bigint)": "images",
    "ALTER TABLE shard2.people REPLICA IDENTITY FULL": "people",
    "ALTER TABLE shard2.people DISABLE TRIGGER t": "people",
    "ALTER TABLE shard2.pets DISABLE TRIGGER ALL": "pets",
    "ALTER TABLE shard2.pets ENABLE TRIGGER ALL": "pets",
    "ALTER TRIGGER t ON shard2.people RENAME TO u": "people",
    "CREATE OR REPLACE TRIGGER u AFTER INSERT ON shard2.people FOR EACH ROW WHEN (NEW.id > 7)"
    " EXECUTE FUNCTION shard2.t()": "people",
    "ALTER TABLE shard2.people ENABLE ROW LEVEL SECURITY": "people",
    "CREATE POLICY more ON shard2.people USING (true)": "people",
    "ALTER TABLE shard2.pets ALTER CONSTRAINT pets_owner_fkey DEFERRABLE": "pets",
    "CREATE INDEX CONCURRENTLY owned ON shard2.pets (owner)": "pets",
    "ALTER INDEX shard2.owned RENAME TO owners": "pets",
    "ALTER INDEX shard2.owners SET (fillfactor = 70)": "pets",
    "CREATE TABLE shard2.today PARTITION OF shard2.days DEFAULT": "today",
    "ALTER TABLE shard2.days DETACH PARTITION shard2.today": "today",
    "ALTER FUNCTION shard2.f() STABLE": "function f",
    "CREATE FUNCTION shard2.g() RETURNS integer LANGUAGE sql AS 'SELECT 1'": "function g",
    "DROP SEQUENCE shard2.numbers": "numbers",
}
"""What a copied structure would lack, and no lock of a writer shows; and the object to be named."""
LOST_MORE = (
    # Constraints
    "ALTER TABLE shard2.pets ALTER CONSTRAINT owned DEFERRABLE",
    "ALTER TABLE shard2.pets ALTER CONSTRAINT owned INITIALLY DEFERRED",
    (
        "ALTER TABLE shard2.pets DROP CONSTRAINT owned, ADD CONSTRAINT owned FOREIGN KEY (owner)"
        " REFERENCES shard2.people ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED"
    ),
    "ALTER TABLE shard2.pets DROP CONSTRAINT one, ADD CONSTRAINT one UNIQUE (at)",
    (
        "ALTER TABLE shard2.pets DROP CONSTRAINT one,"
        " ADD CONSTRAINT one UNIQUE NULLS NOT DISTINCT (at)"
    ),
    "ALTER TABLE shard2.pets VALIDATE CONSTRAINT noted",
    # Options
    "ALTER TABLE shard2.people SET (fillfactor = 70)",
    "ALTER TABLE shard2.people SET (autovacuum_enabled = false)",
    "ALTER TABLE shard2.people SET (toast.autovacuum_enabled = false)",
    "ALTER TABLE shard2.people RESET (fillfactor)",
    "ALTER VIEW shard2.named SET (security_barrier = true)",
    "ALTER INDEX shard2.plain SET (fillfactor = 70)",
    "ALTER INDEX shard2.plain RENAME TO noted_by",
    "ALTER INDEX shard2.lower ALTER COLUMN 1 SET STATISTICS 7",
    (
        "DROP INDEX shard2.noted_by; CREATE INDEX noted_by ON shard2.pets (note DESC)"
        " WITH (fillfactor = 70)"
    ),
    (
        "DROP INDEX shard2.noted_by; CREATE INDEX noted_by ON shard2.pets (note DESC) INCLUDE (at)"
        " WITH (fillfactor = 70)"
    ),
    # Rights
    "GRANT USAGE ON TYPE shard2.pair TO pg_monitor",
    "ALTER TYPE shard2.pair OWNER TO pg_monitor",
    "GRANT USAGE ON DOMAIN shard2.short TO pg_monitor",
    "GRANT USAGE ON SEQUENCE shard2.numbers TO pg_monitor",
    "GRANT EXECUTE ON FUNCTION shard2.f() TO pg_monitor",
    "GRANT SELECT (name) ON shard2.people TO pg_monitor",
    "ALTER FUNCTION shard2.f() OWNER TO pg_monitor",
    "ALTER SEQUENCE shard2.numbers OWNED BY shard2.pets.at",
    # Policies, statistics, triggers
    "ALTER TABLE shard2.people ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY more ON shard2.people FOR UPDATE TO pg_monitor USING (true)",
    "ALTER POLICY more ON shard2.people TO PUBLIC",
    "ALTER POLICY more ON shard2.people RENAME TO most",
    "DROP POLICY most ON shard2.people",
    "ALTER STATISTICS shard2.many SET STATISTICS 7",
    "ALTER STATISTICS shard2.many RENAME TO most",
    "DROP STATISTICS shard2.most",
    (
        "CREATE OR REPLACE TRIGGER touched BEFORE INSERT ON shard2.pets FOR EACH ROW"
        " WHEN (NEW.at > 1) EXECUTE FUNCTION shard2.touch()"
    ),
    (
        "CREATE OR REPLACE TRIGGER touched BEFORE INSERT ON shard2.pets FOR EACH ROW"
        " WHEN (NEW.at > 1) EXECUTE FUNCTION shard2.touch('x')"
    ),
    # Objects of other kinds
    "CREATE OPERATOR shard2.=== (FUNCTION = int4eq, LEFTARG = integer, RIGHTARG = integer)",
    (
        "CREATE OPERATOR CLASS shard2.own FOR TYPE integer USING btree"
        " AS FUNCTION 1 btint4cmp(integer, integer)"
    ),
    "ALTER OPERATOR FAMILY shard2.own USING btree ADD OPERATOR 1 < (integer, integer)",
    (
        "ALTER OPERATOR FAMILY shard2.own USING btree"
        " ADD FUNCTION 1 (bigint, bigint) btint8cmp(bigint, bigint)"
    ),
    "ALTER OPERATOR FAMILY shard2.own USING btree DROP FUNCTION 1 (bigint, bigint)",
    "CREATE COLLATION shard2.c (provider = libc, locale = 'C')",
    "CREATE CONVERSION shard2.own FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8",
    "ALTER TEXT SEARCH CONFIGURATION shard2.words ALTER MAPPING FOR word WITH english_stem",
    "CREATE TEXT SEARCH DICTIONARY shard2.plainly (TEMPLATE = simple)",
    "CREATE TEXT SEARCH CONFIGURATION shard2.bare (PARSER = default)",
    "ALTER TEXT SEARCH CONFIGURATION shard2.bare ADD MAPPING FOR word WITH simple",
    "CREATE TYPE shard2.none AS ENUM ()",
    "ALTER TYPE shard2.none ADD VALUE 'one'",
    "CREATE TEXT SEARCH TEMPLATE shard2.simply (LEXIZE = dsimple_lexize)",
    (
        "CREATE TEXT SEARCH PARSER shard2.by_word (START = prsd_start, GETTOKEN = prsd_nexttoken,"
        " END = prsd_end, LEXTYPES = prsd_lextype)"
    ),
)
"""What a copied structure would lack, and no lock of a writer shows."""
REWRITING = "TRUNCATE shard2.photos"
USE = (
    "INSERT INTO shard2.people SELECT n, 'y' FROM generate_series(51, 5000) AS n",
    "UPDATE shard2.people SET name = 'z' WHERE id < 900",
    "DELETE FROM shard2.people WHERE id > 4000",
    "SELECT nextval('shard2.numbers'), setval('shard2.numbers', 70)",
    "VACUUM shard2.people",
    "ANALYZE shard2.people",
    "COMMENT ON TABLE shard2.pets IS 'a comment'",
    "VACUUM (FREEZE) pg_catalog.pg_class",
    "CREATE TABLE public.elsewhere (id bigint PRIMARY KEY)",
    "GRANT SELECT ON public.elsewhere TO PUBLIC",
    REWRITING,
    "VACUUM FULL shard2.people",
    "CLUSTER shard2.people USING people_pkey",
    "REINDEX TABLE shard2.people",
    "REINDEX TABLE CONCURRENTLY shard2.people",
    "REINDEX TABLE CONCURRENTLY shard2.pets",
    "ALTER SCHEMA shard2 RENAME TO retired",
)
"""What changes nothing of the structure; from the first that is REWRITING, it writes catalogs."""


def looked(session: Connection, schema: str) -> tuple[str, structure_digest.Parts]:
    return structure_digest.digest(session, [schema]), structure_digest.parts(session, [schema])


def versions(session: Connection, schema: str) -> structure_digest.Versions:
    digest, found = structure_digest.known(session, [schema])
    assert digest == structure_digest.digest(session, [schema])
    assert structure_digest.now(session, found) == found.total
    return found


def test_the_digest_of_a_structure_sees_all_that_a_copy_would_lack(fenced: Fenced) -> None:
    session = fenced.session
    session.execute((COPIED + NAMED).encode())
    seen, parts = looked(session, SCHEMA)
    written = versions(session, SCHEMA)
    for statement, name in LOST.items():
        session.execute(statement.encode())
        changed, now = looked(session, SCHEMA)
        assert changed != seen, statement
        assert structure_digest.now(session, written) != written.total, statement
        written = versions(session, SCHEMA)
        told = list(structure_digest.changes(parts, now))
        assert any(one.startswith(f"shard2.{name} " if name else "schema ") for one in told), told
        seen, parts = changed, now


def test_the_digest_of_a_structure_sees_constraints_options_rights_and_other_kinds(
    fenced: Fenced,
) -> None:
    session = fenced.session
    session.execute((COPIED + MORE).encode())
    seen, unseen = structure_digest.known(session, [SCHEMA]), []
    for statement in LOST_MORE:
        session.execute(statement.encode())
        now = structure_digest.now(session, seen[1])
        changed = structure_digest.known(session, [SCHEMA])
        if changed[0] == seen[0] or now == seen[1].total:
            unseen.append(statement)
        seen = changed
    assert unseen == []


def test_the_digest_of_a_structure_does_not_see_its_use(fenced: Fenced) -> None:
    session = fenced.session
    session.execute((COPIED + MORE).encode())
    seen, parts = looked(session, SCHEMA)
    written = versions(session, SCHEMA)
    for statement in USE:
        if statement == REWRITING:
            assert structure_digest.now(session, written) == written.total
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
