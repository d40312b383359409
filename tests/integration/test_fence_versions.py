"""The fence on every major version: what a transaction has made in a moved schema is waited for."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from shardctl.access import fence, structure_digest, write_fence
from shardctl.access.fence import FenceRefused, UnloggedMade, WritersLeft
from shardctl.postgres import connection
from shardctl.state import format as formats
from shardctl.state import journal
from shardctl.state.journal import MoveState
from shardctl.topology import names
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from shardctl.postgres.connection import Connection
    from tests.fixtures.servers.postgres import PgServer, StartServer

MOVE, SCHEMA = "5f3a9c1e", "shard2"
RETIRED = names.retired(SCHEMA, MOVE)
MADE = "SELECT count(*) FROM pg_class WHERE relname = 'made' AND relnamespace = %s::regnamespace"
SHARD = """
CREATE SCHEMA shard2;
CREATE TABLE shard2.photos (id bigint);
CREATE FUNCTION shard2.f() RETURNS integer LANGUAGE sql AS 'SELECT 1';
CREATE TYPE shard2.mood AS ENUM ('good');
CREATE TABLE public.made (id bigint)
"""


@dataclasses.dataclass
class Fenced:
    """A database with one shard, whose move is before its cutover; `session` is shardctl's."""

    session: Connection
    other: psycopg.Connection[tuple[object, ...]]
    """Somebody else's session, in a transaction from its first statement on."""
    read_only: bool = False

    def put_up(self) -> None:
        soon = time.monotonic() + 0.2
        not_after = fence.not_after(self.session, soon + 5)
        found = journal.find(self.session, MOVE)
        assert found is not None
        if self.read_only:
            write_fence.put_up(
                self.session, "a", MOVE, [SCHEMA], revision=found.revision, deadline=soon,
                not_after=not_after,
            )  # fmt: skip
        else:
            fence.put_up(
                self.session, "a", MOVE, revision=found.revision, deadline=soon, not_after=not_after
            )

    def drain(self) -> None:
        now = time.monotonic()
        if self.read_only:
            write_fence.drain(self.session, "a", [SCHEMA], deadline=now)
        else:
            fence.drain(self.session, "a", MOVE, deadline=now)

    def cut(self) -> None:
        """Do the part of a cutover after which no write comes any more."""
        self.put_up()
        self.drain()

    def call_off(self) -> None:
        fence.lift(self.session, MOVE)
        found = journal.find(self.session, MOVE)
        assert found is not None
        assert found.state is MoveState.undone

    def made(self) -> int:
        """Count what is called `made` in the shard, under whichever name that is."""
        schema = SCHEMA if self.read_only else RETIRED
        row = self.session.execute(MADE, [schema]).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture(
    params=[15, *(pytest.param(m, marks=pytest.mark.embedded) for m in (16, 18))], scope="module"
)
def version(request: pytest.FixtureRequest, pg_server: StartServer) -> PgServer:
    return pg_server({"max_prepared_transactions": "2"}, major=request.param)


@pytest.fixture
def fenced(version: PgServer, tmp_path: Path) -> Iterator[Fenced]:
    """Give a database of the test's own."""
    with version.connect() as admin:
        admin.execute("DROP DATABASE IF EXISTS fenced WITH (FORCE)")
        admin.execute("CREATE DATABASE fenced")
        with version.connect("fenced") as made:
            for script in (*formats.scripts(0), SHARD):
                made.execute(script.encode())
        topology = local_topology(tmp_path, local_node(tmp_path, "a", version.port, range(1)))
        database = dataclasses.replace(topology.database, name="fenced")
        with ExitStack() as stack:
            session = stack.enter_context(
                connection.connect(
                    next(iter(topology.nodes.values())), database, purpose="test", autocommit=True
                )
            )
            journal.open_move(
                session, move=MOVE, method="clone", source="a", target="c", shards=[2],
                schemas=[SCHEMA], retired=[RETIRED], plan={},
            )  # fmt: skip
            other = stack.enter_context(version.connect("fenced", autocommit=False))
            write_fence.prepare(session)
            yield Fenced(session, other)
            for (gid,) in session.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                session.execute(f"ROLLBACK PREPARED '{gid}'".encode())


@pytest.fixture(params=[False, True], ids=["rename", "triggers"])
def either(request: pytest.FixtureRequest, fenced: Fenced) -> Fenced:
    """Give it with one of the two fences."""
    fenced.read_only = request.param
    return fenced


MAKING = {
    "table": "CREATE TABLE shard2.made AS SELECT 1 AS id",
    "moved in": "ALTER TABLE public.made SET SCHEMA shard2",
    "view": "CREATE VIEW shard2.made AS SELECT 1 AS id",
    "sequence": "CREATE SEQUENCE shard2.made",
    "row type": "CREATE TYPE shard2.made AS (id bigint)",
}
"""What makes a relation in the shard, and takes no lock there that a write takes."""


@pytest.mark.parametrize("kind", MAKING)
def test_what_is_made_and_not_committed_is_waited_for(either: Fenced, kind: str) -> None:
    either.other.execute(MAKING[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        either.cut()
    either.call_off()
    either.other.commit()
    either.cut()
    assert either.made() == 1


CHANGING = {
    "dropped": "DROP TABLE shard2.photos",
    "moved out": "ALTER TABLE shard2.photos SET SCHEMA public",
    "index": "CREATE INDEX ON shard2.photos (id)",
    "granted": "GRANT USAGE ON SCHEMA shard2 TO PUBLIC",
    "all dropped": "DROP SCHEMA shard2 CASCADE",
    "value": "ALTER TYPE shard2.mood ADD VALUE 'bad'",
    "function": "DROP FUNCTION shard2.f()",
}
"""What changes something in the shard under a lock of its own."""


@pytest.mark.parametrize("kind", CHANGING)
def test_what_is_changed_and_not_committed_is_waited_for(fenced: Fenced, kind: str) -> None:
    fenced.other.execute(CHANGING[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        fenced.cut()
    fenced.call_off()
    fenced.other.rollback()
    fenced.cut()


def test_what_a_prepared_transaction_has_made_is_waited_for(either: Fenced) -> None:
    either.other.execute(MAKING["table"].encode())
    either.other.execute("PREPARE TRANSACTION 'made'")
    either.other.rollback()
    with pytest.raises((FenceRefused, WritersLeft)):
        either.cut()
    either.call_off()
    either.session.execute("COMMIT PREPARED 'made'")
    either.cut()
    assert either.made() == 1


def test_what_was_made_unlogged_meanwhile_is_refused(either: Fenced) -> None:
    either.other.execute("CREATE UNLOGGED TABLE shard2.made ()")
    either.other.commit()
    with pytest.raises(UnloggedMade, match=r"made in moved shards became unlogged"):
        either.cut()
    either.call_off()


BINDING = {
    "view": "CREATE VIEW public.bound AS SELECT * FROM shard2.photos",
    "rule": "CREATE RULE bound AS ON INSERT TO public.made DO INSERT INTO shard2.photos VALUES (1)",
    "function": "CREATE FUNCTION public.bound() RETURNS void LANGUAGE sql"
    " BEGIN ATOMIC INSERT INTO shard2.photos VALUES (1); END",
}
"""What is made elsewhere and bound to a table of the shard: it writes there whatever its name."""


@pytest.mark.parametrize("kind", BINDING)
def test_who_binds_something_elsewhere_to_the_shard_is_waited_for(
    fenced: Fenced, kind: str
) -> None:
    fenced.other.execute(BINDING[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        fenced.cut()
    fenced.call_off()
    fenced.other.rollback()
    fenced.cut()


def test_who_only_reads_is_not_waited_for(either: Fenced) -> None:
    either.other.execute("SELECT FROM shard2.photos")
    either.cut()


def test_who_makes_things_elsewhere_is_not_waited_for(either: Fenced) -> None:
    either.other.execute("CREATE TABLE public.other (id bigint); CREATE TEMP TABLE t (id bigint)")
    either.cut()


def test_who_makes_a_table_before_the_decision_is_seen_by_the_last_look(fenced: Fenced) -> None:
    fenced.read_only = True
    fenced.cut()
    fenced.other.execute(MAKING["table"].encode())
    with pytest.raises(FenceRefused, match="uncommitted tables"):
        fenced.drain()
    fenced.other.commit()
    with pytest.raises(write_fence.TablesUncovered, match=r"shard2\.made"):
        fenced.drain()


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
    "CREATE COLLATION shard2.c (provider = libc, locale = 'C')",
    "CREATE CONVERSION shard2.own FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8",
    "ALTER TEXT SEARCH CONFIGURATION shard2.words ALTER MAPPING FOR word WITH english_stem",
    "CREATE TEXT SEARCH DICTIONARY shard2.plainly (TEMPLATE = simple)",
)
"""What a copied structure would lack, and no lock of a writer shows."""
USE = (
    "INSERT INTO shard2.people SELECT n, 'y' FROM generate_series(51, 5000) AS n",
    "UPDATE shard2.people SET name = 'z' WHERE id < 900",
    "DELETE FROM shard2.people WHERE id > 4000",
    "SELECT nextval('shard2.numbers'), setval('shard2.numbers', 70)",
    "VACUUM shard2.people",
    "ANALYZE shard2.people",
    "TRUNCATE shard2.photos",
    "VACUUM FULL shard2.people",
    "CLUSTER shard2.people USING people_pkey",
    "REINDEX TABLE shard2.people",
    "REINDEX TABLE CONCURRENTLY shard2.people",
    "REINDEX TABLE CONCURRENTLY shard2.pets",
    "COMMENT ON TABLE shard2.pets IS 'a comment'",
    "ALTER SCHEMA shard2 RENAME TO retired",
)
"""What changes nothing of the structure."""


def looked(session: Connection, schema: str) -> tuple[str, structure_digest.Parts]:
    return structure_digest.digest(session, [schema]), structure_digest.parts(session, [schema])


def test_the_digest_of_a_structure_sees_all_that_a_copy_would_lack(fenced: Fenced) -> None:
    session = fenced.session
    session.execute((COPIED + NAMED).encode())
    seen, parts = looked(session, SCHEMA)
    for statement, name in LOST.items():
        session.execute(statement.encode())
        changed, now = looked(session, SCHEMA)
        assert changed != seen, statement
        told = list(structure_digest.changes(parts, now))
        assert any(one.startswith(f"shard2.{name} " if name else "schema ") for one in told), told
        seen, parts = changed, now


def test_the_digest_of_a_structure_sees_constraints_options_rights_and_other_kinds(
    fenced: Fenced,
) -> None:
    session = fenced.session
    session.execute((COPIED + MORE).encode())
    seen, unseen = structure_digest.digest(session, [SCHEMA]), []
    for statement in LOST_MORE:
        session.execute(statement.encode())
        changed = structure_digest.digest(session, [SCHEMA])
        if changed == seen:
            unseen.append(statement)
        seen = changed
    assert unseen == []


def test_the_digest_of_a_structure_does_not_see_its_use(fenced: Fenced) -> None:
    session = fenced.session
    session.execute((COPIED + MORE).encode())
    seen, parts = looked(session, SCHEMA)
    for statement in USE:
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
