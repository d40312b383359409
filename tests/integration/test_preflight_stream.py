"""What preflight of a streamed move sees on real servers of every major version."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from shardctl.moves import plan as planning
from shardctl.moves.plan import Options, PreflightRefused, SourceUnfit, TargetUnfit
from shardctl.moves.preflight import member, schemas, server, table
from shardctl.moves.preflight.subject import Context, Unknown
from shardctl.postgres.connection import connect
from tests.fixtures.refusals import by_code
from tests.fixtures.servers.postgres import local_node, local_topology, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.servers.postgres import PgServer, StartServer

DATABASE = "preflight"
KINDS = "kinds of objects"
(STRUCTURE,) = [one for one in table.CHECKS if one.name == "structure"]
MOVED = """
CREATE SCHEMA shard2;
CREATE SCHEMA shard3;
CREATE TABLE shard2.photos (id bigint PRIMARY KEY, title text)
"""


@pytest.fixture(
    params=[15, *(pytest.param(m, marks=pytest.mark.embedded) for m in (16, 18))], scope="module"
)
def version(request: pytest.FixtureRequest, pg_server: StartServer) -> PgServer:
    return pg_server({"wal_level": "logical"}, major=request.param)


CLEAN = """
DO $$
DECLARE
    one text;
BEGIN
    FOR one IN
        SELECT format('DROP EVENT TRIGGER %I', evtname) FROM pg_event_trigger
        UNION ALL SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication
        UNION ALL SELECT format('DROP FOREIGN DATA WRAPPER %I CASCADE', fdwname)
                  FROM pg_foreign_data_wrapper
        UNION ALL SELECT format('DROP EXTENSION %I CASCADE', extname)
                  FROM pg_extension WHERE extname <> 'plpgsql'
        UNION ALL SELECT format('SELECT lo_unlink(%s)', oid) FROM pg_largeobject_metadata
    LOOP
        EXECUTE one;
    END LOOP;
END
$$;
DROP SCHEMA IF EXISTS shard2, shard3, public CASCADE;
CREATE SCHEMA public
"""


@pytest.fixture(scope="module")
def database(version: PgServer) -> str:
    with closing(version.connect()) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}".encode())
    return DATABASE


@pytest.fixture
def context(version: PgServer, database: str, tmp_path: Path) -> Iterator[Context]:
    """Give a move from a server to itself: each look asks one of the two."""
    nodes = (
        local_node(tmp_path, "a", version.port, range(4)),
        local_node(tmp_path, "c", version.port, range(4, 4)),
    )
    topology = local_topology(tmp_path, *nodes, name=database)
    made = planning.make(topology, [2, 3], "c", 1, Options(max_pause_s=5, retain_s=0))
    found = Context(topology, dataclasses.replace(made, method=planning.STREAM), "test")
    with closing(connect(nodes[0], topology.database, purpose="test", autocommit=True)) as session:
        session.execute(f"{CLEAN};{MOVED}".encode())
        server.keep_out(session, seconds=5)
        found.session = found.member = session
        found.ask(server.look)
        found.ask(server.look_at_target)
        yield found


def make(context: Context, statements: str) -> None:
    """Change the database, as others do."""
    node, database = context.source, context.topology.database
    with closing(connect(node, database, purpose="others", autocommit=True)) as session:
        session.execute(statements.encode())


def said(context: Context, name: str) -> dict[str, str]:
    """Ask a question of the table; give what is refused, hints and all, by code, and the notes."""
    whose, _, of = name.partition("'s ")
    (check,) = [one for one in table.CHECKS if one.name == (of or name)]
    at_target = whose == "target" or check.at in ("target", "both")
    look = check.look_at_target if at_target else check.look
    context.ask(look)
    found = list(check.judge(look, context))
    return by_code(found) | {"note": "\n".join(one for one in found if isinstance(one, str))}


def installed(context: Context) -> str:
    """Name an extension that the server's programs have: it has a type of its own name."""
    found = context.session.execute(
        "SELECT name FROM pg_available_extensions WHERE name IN ('hstore', 'vector') ORDER BY 1"
    ).fetchone()
    assert found is not None
    return str(found[0])


def test_replica_identities(context: Context) -> None:
    make(
        context,
        """
        CREATE TABLE shard2.without (id bigint);
        INSERT INTO shard2.without SELECT generate_series(1, 100);
        ANALYZE shard2.without;
        CREATE TABLE shard2.deferred (id bigint PRIMARY KEY DEFERRABLE);
        CREATE TABLE shard2.nothing (id bigint PRIMARY KEY);
        ALTER TABLE shard2.nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE shard2.whole (id bigint, tags text[], code varchar(3));
        ALTER TABLE shard2.whole REPLICA IDENTITY FULL;
        CREATE TABLE shard2.unequal (id bigint, at point);
        ALTER TABLE shard2.unequal REPLICA IDENTITY FULL;
        CREATE TABLE shard2.twice (id bigint, two bigint GENERATED ALWAYS AS (2 * id) STORED);
        ALTER TABLE shard2.twice REPLICA IDENTITY FULL;
        CREATE TABLE shard3.key (id bigint,
            two bigint GENERATED ALWAYS AS (2 * id) STORED NOT NULL UNIQUE);
        ALTER TABLE shard3.key REPLICA IDENTITY USING INDEX key_two_key;
        CREATE TABLE shard3.parted (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE shard3.part PARTITION OF shard3.parted FOR VALUES FROM (0) TO (9);
        CREATE TABLE public.without (id bigint)
        """,
    )
    told = said(context, "replica identities")
    refused = {
        "generated_identity": "shard3.key",
        "generated_identity_full": "shard2.twice",
        "identity_without_equality": "shard2.unequal",
    }
    assert {key: text.partition("\n")[0].rpartition(": ")[2] for key, text in told.items()} == {
        **refused,
        "no_replica_identity": "shard2.deferred, shard2.nothing, shard2.without",
        "note": "shard2.whole (0 rows, 0 bytes); for each row that clients update or delete, node "
        "c reads the table up to that row",
    }
    assert "--identity full" in told["no_replica_identity"]

    options = dataclasses.replace(context.plan.options, identity_full=True)
    context.plan = dataclasses.replace(context.plan, options=options)
    assert said(context, "replica identities").keys() == {*refused, "note"}


def test_kinds_and_contents(context: Context) -> None:
    extension = installed(context)
    make(
        context,
        f"""
        CREATE FOREIGN DATA WRAPPER nothing;
        CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing;
        CREATE FOREIGN TABLE shard2.far (id bigint) SERVER elsewhere;
        CREATE MATERIALIZED VIEW shard2.counts AS SELECT count(*) FROM shard2.photos;
        CREATE MATERIALIZED VIEW shard2.bare AS SELECT 1 AS one WITH NO DATA;
        CREATE TABLE shard2.hidden (id bigint);
        ALTER TABLE shard2.hidden FORCE ROW LEVEL SECURITY;
        CREATE FUNCTION shard2.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE TRIGGER always BEFORE INSERT ON shard2.photos
            FOR EACH ROW EXECUTE FUNCTION shard2.f();
        ALTER TABLE shard2.photos ENABLE ALWAYS TRIGGER always;
        CREATE TRIGGER shardctl_read_only BEFORE TRUNCATE ON shard2.hidden
            EXECUTE FUNCTION shard2.f();
        ALTER TABLE shard2.hidden ENABLE ALWAYS TRIGGER shardctl_read_only;
        CREATE TABLE shard2.child (parent bigint);
        ALTER TABLE shard2.child ADD CONSTRAINT child_fk FOREIGN KEY (parent)
            REFERENCES shard2.photos NOT VALID;
        CREATE EXTENSION {extension} SCHEMA shard3;
        CREATE UNLOGGED TABLE shard2.fast (id bigint);
        CREATE TABLE shard2.refers (what regclass);
        SELECT lo_create(0);
        CREATE TABLE public.parted (id bigint) PARTITION BY RANGE (id);
        CREATE TABLE shard2.part PARTITION OF public.parted FOR VALUES FROM (0) TO (9)
        """,
    )
    told = said(context, KINDS)
    assert {key: text.partition("\n")[0].rpartition(": ")[2] for key, text in told.items()} == {
        "always_triggers": "always on shard2.photos",
        "extensions_inside": f"{extension} in shard3",
        "foreign_tables": "shard2.far",
        "forced_row_security": "shard2.hidden",
        "materialized_views": "shard2.counts",
        "oid_columns": "shard2.refers.what",
        "note": "",
    }
    with pytest.raises(SourceUnfit, match=r"shard2\.part") as caught:
        context.ask(schemas.look)
    assert caught.value.code == "crossing"
    told = said(context, "contents")
    assert told.keys() == {"unlogged", "large_objects", "note"}
    assert "shard2.fast" in told["unlogged"]


def test_amounts_of_money_that_the_target_reads_in_another_form(context: Context) -> None:
    make(context, "CREATE TABLE shard2.sold (price money[])")
    context.ask(STRUCTURE.define)
    context.member.execute("SET lc_monetary = 'POSIX'")
    try:
        assert "shard2.sold (" in said(context, "structure")["lc_monetary"]
    finally:
        context.member.execute("RESET lc_monetary")


def test_what_a_subscription_takes(context: Context) -> None:
    assert said(context, "room of a subscription") == {"note": ""}
    make(
        context,
        f"""
        ALTER ROLE CURRENT_USER IN DATABASE {DATABASE} SET lock_timeout = '2s';
        ALTER DATABASE {DATABASE} SET statement_timeout = '1min';
        ALTER DATABASE {DATABASE} SET array_nulls = off;
        ALTER DATABASE {DATABASE} SET session_replication_role = origin
        """,
    )
    try:
        told = said(context, "room of a subscription")
    finally:
        make(
            context,
            f"ALTER ROLE CURRENT_USER IN DATABASE {DATABASE} RESET ALL;"
            f"ALTER DATABASE {DATABASE} RESET ALL",
        )
    assert told.keys() == {"apply_settings", "note"}
    assert ": array_nulls=off, lock_timeout=2s" in told["apply_settings"]


def test_what_feeds_a_stream(context: Context) -> None:
    assert said(context, "source's room of replication") == {"note": ""}
    kept = dataclasses.replace(context.plan, reverse="5f3a9c1e")
    for slots in range(10):
        make(context, f"SELECT pg_create_physical_replication_slot('held{slots}')")
    try:
        told = said(context, "source's room of replication")
        assert told.keys() == {"replication_slots", "note"}
        assert "max_replication_slots = 10, 10 in use" in told["replication_slots"]
        assert said(context, "target's room of replication") == {"note": ""}
        context.plan = kept
        assert "replication_slots" in said(context, "target's room of replication")
    finally:
        make(context, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_a_target_that_commits_would_wait_for(context: Context) -> None:
    alter = "ALTER SYSTEM SET synchronous_standby_names = "
    try:
        for names, told in (("FIRST 2 (s1, s2)", set()), ('1 (other, "C")', {"synchronous_clone"})):
            make(context, f"{alter}'{names}'")
            make(context, "SELECT pg_reload_conf()")
            wait_for(lambda: shown(context, "synchronous_standby_names") == names)  # noqa: B023
            assert said(context, "standbys").keys() == {*told, "note"}
    finally:
        make(context, "ALTER SYSTEM RESET synchronous_standby_names")
        make(context, "SELECT pg_reload_conf()")


def shown(context: Context, name: str) -> str:
    """Show a setting."""
    [(value,)] = context.session.execute(f"SHOW {name}".encode())
    return str(value)


def test_publications(context: Context) -> None:
    assert said(context, "source's publications") == {"note": ""}
    make(
        context,
        """
        CREATE PUBLICATION everything FOR ALL TABLES;
        CREATE PUBLICATION whole FOR TABLES IN SCHEMA shard3;
        CREATE PUBLICATION listed FOR TABLE shard2.photos;
        CREATE PUBLICATION other FOR TABLES IN SCHEMA public
        """,
    )
    for whose in ("source", "target"):
        assert "everything, whole" in said(context, f"{whose}'s publications")["wide_publications"]


NEEDED = """
    CREATE EXTENSION {extension};
    CREATE TYPE public.mood AS ENUM ('good', 'bad');
    CREATE DOMAIN public.short AS text CHECK (length(VALUE) < 9);
    CREATE TYPE public.pair AS (one integer, two text);
    CREATE FUNCTION public.next() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
    CREATE COLLATION public.plain (provider = libc, locale = 'C');
    CREATE TABLE public.countries (id bigint PRIMARY KEY);
    DROP ROLE IF EXISTS preflight_reader;
    CREATE ROLE preflight_reader;
    CREATE TABLE shard2.all_of_it (
        id bigint DEFAULT public.next(), attributes {extension}, moods public.mood[],
        name public.short, pair public.pair, sorted text COLLATE public.plain,
        country bigint REFERENCES public.countries);
    GRANT SELECT ON shard2.all_of_it TO preflight_reader
"""


def test_what_the_structure_needs(context: Context) -> None:
    extension = installed(context)
    make(context, NEEDED.format(extension=extension))
    version = "UPDATE pg_extension SET extversion = '{}' WHERE extname <> 'plpgsql'"
    make(context, version.format("0.10"))
    needed = {f"{kind} {name}" for kind, name in context.ask(STRUCTURE.define)}
    assert needed >= {
        "function public.next()", "relation public.countries", "collation public.plain",
        "role preflight_reader",
    }  # fmt: skip
    assert said(context, "structure") == {"note": ""}
    make(
        context,
        f"""
        DROP OWNED BY preflight_reader; DROP ROLE preflight_reader;
        ALTER TYPE public.mood ADD VALUE 'new';
        ALTER TYPE public.pair ADD ATTRIBUTE three integer CASCADE;
        ALTER DOMAIN public.short SET NOT NULL;
        {version.format("0.9")}
        """,
    )
    told = said(context, "structure")
    assert told.keys() == {"role_missing", "type_differs", "extension_differs", "note"}
    assert "public.mood" in told["type_differs"]
    assert extension in told["extension_differs"]


def test_a_target_that_has_none_of_it(context: Context, version: PgServer) -> None:
    extension = installed(context)
    make(context, NEEDED.format(extension=extension))
    context.ask(STRUCTURE.define)
    with closing(version.connect()) as admin:
        admin.execute("CREATE DATABASE bare TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        try:
            with closing(version.connect("bare")) as context.member:
                told = said(context, "structure")
        finally:
            admin.execute("DROP DATABASE bare")
    kinds = ("extension", "type", "function", "relation", "collation")
    assert told.keys() == {*(f"{kind}_missing" for kind in kinds), "encoding", "locale", "note"}
    assert "public.mood, public.pair" in told["type_missing"]
    assert "LATIN1" in told["encoding"]


def test_a_login_for_replication_that_fails(context: Context) -> None:
    make(context, "DROP ROLE IF EXISTS no_replication; CREATE ROLE no_replication LOGIN")
    database = dataclasses.replace(context.topology.database, replication_user="no_replication")
    context.topology = dataclasses.replace(context.topology, database=database)
    context.ask(table.RIGHTS.look_at_target)
    context.ask(member.look_at_triggers)
    with pytest.raises(TargetUnfit, match="no_replication") as caught:
        context.ask(member.try_login)
    assert caught.value.code == "replication_login"
    make(context, "DROP ROLE no_replication")


def test_an_event_trigger(context: Context) -> None:
    make(
        context,
        """
        CREATE FUNCTION public.stop() RETURNS event_trigger LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
        CREATE EVENT TRIGGER stop ON ddl_command_start EXECUTE FUNCTION public.stop()
        """,
    )
    context.ask(table.RIGHTS.look)
    context.ask(table.RIGHTS.look_at_target)
    for look in (member.look_at_triggers_of_source, member.look_at_triggers):
        with pytest.raises(PreflightRefused, match=r"\(stop\)") as caught:
            context.ask(look)
        assert caught.value.code == "event_trigger"
    with pytest.raises(Unknown):  # it would be reported as a login that fails
        context.ask(member.try_login)
