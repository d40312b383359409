"""`read-only`: what refuses writes, to whom, and that nothing of it stays afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.fleets.read_only import OF_A_SHARD, refused, switch_off, switch_on, triggers

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

WRITES = {
    "insert": "INSERT INTO {}.photos (user_id) VALUES (1)",
    "insert of no row": "INSERT INTO {}.photos (user_id) SELECT 1 WHERE false",
    "upsert": "INSERT INTO {}.photos (id, user_id) VALUES (1, 1) ON CONFLICT DO NOTHING",
    "update": "UPDATE {}.photos SET user_id = 2",
    "delete": "DELETE FROM {}.photos",
    "truncate": "TRUNCATE {}.likes",
    "truncate of what references it": "TRUNCATE {}.photos CASCADE",
    "copy": "COPY {}.photos (user_id) FROM PROGRAM 'echo 1'",
    "a partitioned table": "INSERT INTO {}.days VALUES ('2026-05-05', 1)",
    "a partition": "INSERT INTO {}.days_1 VALUES ('2026-05-05', 1)",
    "a view": "UPDATE {}.named SET user_id = 3",
    "a function": "SELECT {}.add()",
    "a common table expression": "WITH w AS (DELETE FROM {}.likes RETURNING 1) SELECT * FROM w",
    "without ordinary triggers": (
        "SET session_replication_role = replica; INSERT INTO {}.photos (user_id) VALUES (1)"
    ),
    "merge": (
        "MERGE INTO {}.photos AS p USING (VALUES (1)) AS v (id) ON p.id = v.id"
        " WHEN NOT MATCHED THEN INSERT (id, user_id) VALUES (v.id, 1)"
    ),
}
_WITH_MERGE = 150_000


def test_every_kind_of_write_is_refused_even_to_superusers(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 2)
    for kind, write in WRITES.items():
        with fleet_tables.connect("a") as session:
            if kind == "merge" and session.info.server_version < _WITH_MERGE:
                continue
            session.execute("SET search_path = shard2")
            with refused(2):
                session.execute(write.format("shard2").encode())
            session.execute("SET search_path = shard1")
            session.execute(write.format("shard1").encode())


def test_reads_row_locks_sequences_and_other_shards_go_on(fleet_tables: Fleet) -> None:
    fleet_tables.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (1)")
    switch_on(fleet_tables, 2)
    with fleet_tables.connect("a", user=fleet_tables.role) as session:
        assert session.execute("SELECT count(*) FROM shard2.photos").fetchone() == (1,)
        assert session.execute("SELECT id FROM shard2.photos FOR UPDATE").rowcount == 1
        assert session.execute("SELECT shard2.next_id()").rowcount == 1
        session.execute("INSERT INTO shard3.photos (user_id) VALUES (1)")


# Undone exactly


def catalog(one: Fleet) -> list[list[object]]:
    """Give every row of the catalogs that tells of shard 2."""
    inside = "IN (SELECT oid FROM pg_class WHERE relnamespace = 'shard2'::regnamespace)"
    # A hint that there may be triggers, which the next VACUUM of the table takes away.
    hint = "to_jsonb(c) - 'relhastriggers'"
    questions = (
        f"SELECT ({hint})::text FROM pg_class AS c WHERE oid {inside} ORDER BY oid",
        f"SELECT t::text FROM pg_trigger AS t WHERE tgrelid {inside} ORDER BY oid",
        f"SELECT t::text FROM pg_attribute AS t WHERE attrelid {inside} ORDER BY attrelid, attnum",
        f"SELECT t::text FROM pg_constraint AS t WHERE conrelid {inside} ORDER BY oid",
        f"SELECT t::text FROM pg_depend AS t WHERE objid {inside} OR refobjid {inside} ORDER BY 1",
        "SELECT t::text FROM pg_namespace AS t WHERE nspname = 'shard2'",
        "SELECT t::text FROM pg_proc AS t WHERE pronamespace = 'shard2'::regnamespace ORDER BY 1",
    )
    return [one.query("a", question) for question in questions]


def test_off_leaves_the_catalog_as_it_was(fleet_tables: Fleet) -> None:
    fleet_tables.execute(
        "a",
        "CREATE FUNCTION shard2.touch() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN new; END';"
        "CREATE TRIGGER touch BEFORE UPDATE ON shard2.photos"
        " FOR EACH ROW EXECUTE FUNCTION shard2.touch();"
        "ALTER TABLE shard2.photos ENABLE REPLICA TRIGGER touch",
    )
    before = catalog(fleet_tables)
    switch_on(fleet_tables, 2)
    assert triggers(fleet_tables, "a") == {"shard2": OF_A_SHARD}
    assert catalog(fleet_tables) != before
    switch_off(fleet_tables, 2)
    assert catalog(fleet_tables) == before


def test_the_part_of_a_table_elsewhere_is_refused_row_by_row(fleet_tables: Fleet) -> None:
    fleet_tables.execute(
        "a",
        "CREATE TABLE public.everything (shard integer, n integer) PARTITION BY LIST (shard);"
        "CREATE TABLE shard2.mine PARTITION OF public.everything FOR VALUES IN (2)"
        " PARTITION BY LIST (n);"
        "CREATE TABLE shard2.mine_1 PARTITION OF shard2.mine FOR VALUES IN (1);"
        "CREATE TABLE shard3.mine PARTITION OF public.everything FOR VALUES IN (3);"
        "INSERT INTO public.everything VALUES (2, 1), (3, 1)",
    )
    switch_on(fleet_tables, 2)
    with fleet_tables.connect("a") as session:
        for statement in (
            "INSERT INTO public.everything VALUES (2, 1)",
            "UPDATE public.everything SET n = 1",
            "UPDATE public.everything SET shard = 2 WHERE shard = 3",
            "DELETE FROM public.everything",
            "TRUNCATE public.everything",
        ):
            with refused(2):
                session.execute(statement.encode())
        session.execute("INSERT INTO public.everything VALUES (3, 1)")
    switch_off(fleet_tables, 2)
    assert triggers(fleet_tables, "a") == {}
