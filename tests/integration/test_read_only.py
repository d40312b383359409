"""`shardctl read-only`: what refuses writes, to whom, and that nothing of it stays afterwards."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.access import read_only_fleet
from shardctl.access.read_only import Wanted
from shardctl.fanout import Silent
from shardctl.state import lock
from tests.fixtures.fleets.verify import verify
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet

TABLES = """
CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL, about text);
CREATE TABLE likes (id bigint DEFAULT next_id(), photo bigint REFERENCES photos ON DELETE CASCADE);
CREATE TABLE days (day date NOT NULL, n integer) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE VIEW named AS SELECT id, user_id FROM photos;
CREATE FUNCTION add() RETURNS void LANGUAGE sql AS 'INSERT INTO photos (user_id) VALUES (9)';
"""
OF_A_SHARD = 4
"""How many tables that makes."""
INSERT = b"INSERT INTO shard2.photos (user_id) VALUES (1)"
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


def switch(one: Fleet, wanted: Wanted, *shards: int, wait_s: float = 0) -> None:
    """Do what the command does, without asking."""
    topology = one.topology()
    chosen = [shard for shard in topology.owners() if shard in shards]
    purpose = lock.purpose(wanted.command)
    plans = read_only_fleet.plan(topology, chosen, wanted, purpose=purpose)
    read_only_fleet.carry_out(topology, plans, wanted, wait_s=wait_s, progress=Silent())


def refused(shard: int) -> pytest.RaisesExc[psycopg.errors.ReadOnlySqlTransaction]:
    """Expect a write to be refused, in words that name the shard."""
    told = rf"^shard {shard} is read-only: "
    return pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match=told)


def triggers(one: Fleet, node: str) -> dict[str, int]:
    """Count the triggers of read-only shards by schema, in force or not."""
    rows = one.query(
        node,
        "SELECT c.relnamespace::regnamespace::text, count(*) FROM pg_trigger AS g"
        " JOIN pg_class AS c ON c.oid = g.tgrelid"
        " WHERE g.tgfoid = to_regprocedure('shardctl.refuse_write()') GROUP BY 1",
    )
    return dict(rows)


@pytest.fixture
def fleet(new_fleet: PooledFleet) -> PooledFleet:
    """Give a fleet of 8 shards with tables of many kinds, of which `verify` tells nothing."""
    new_fleet.migration("0001_photos.sql", TABLES)
    new_fleet.copy()
    return new_fleet


def test_every_kind_of_write_is_refused_even_to_superusers(fleet: Fleet) -> None:
    switch(fleet, Wanted.on, 2)
    for kind, write in WRITES.items():
        with fleet.connect("a") as session:
            if kind == "merge" and session.info.server_version < _WITH_MERGE:
                continue
            session.execute("SET search_path = shard2")
            with refused(2):
                session.execute(write.format("shard2").encode())
            session.execute("SET search_path = shard1")
            session.execute(write.format("shard1").encode())


def test_reads_row_locks_sequences_and_other_shards_go_on(fleet: Fleet) -> None:
    fleet.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (1)")
    switch(fleet, Wanted.on, 2)
    with fleet.connect("a", user=fleet.role) as session:
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


def test_off_leaves_the_catalog_as_it_was(fleet: Fleet) -> None:
    fleet.execute(
        "a",
        "CREATE FUNCTION shard2.touch() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN new; END';"
        "CREATE TRIGGER touch BEFORE UPDATE ON shard2.photos"
        " FOR EACH ROW EXECUTE FUNCTION shard2.touch();"
        "ALTER TABLE shard2.photos ENABLE REPLICA TRIGGER touch",
    )
    before = catalog(fleet)
    switch(fleet, Wanted.on, 2)
    assert triggers(fleet, "a") == {"shard2": OF_A_SHARD}
    assert catalog(fleet) != before
    switch(fleet, Wanted.off, 2)
    assert catalog(fleet) == before


def test_the_part_of_a_table_elsewhere_is_refused_row_by_row(fleet: Fleet) -> None:
    fleet.execute(
        "a",
        "CREATE TABLE public.everything (shard integer, n integer) PARTITION BY LIST (shard);"
        "CREATE TABLE shard2.mine PARTITION OF public.everything FOR VALUES IN (2)"
        " PARTITION BY LIST (n);"
        "CREATE TABLE shard2.mine_1 PARTITION OF shard2.mine FOR VALUES IN (1);"
        "CREATE TABLE shard3.mine PARTITION OF public.everything FOR VALUES IN (3);"
        "INSERT INTO public.everything VALUES (2, 1), (3, 1)",
    )
    switch(fleet, Wanted.on, 2)
    with fleet.connect("a") as session:
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
    switch(fleet, Wanted.off, 2)
    assert triggers(fleet, "a") == {}


# The command


def test_on_and_off_tell_the_plan_and_what_was_done(fleet: Fleet) -> None:
    done = fleet.here("read-only", "on", "2-5", "--yes")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["a", "on", "2-3", "8", "none"] in rows
    assert ["b", "on", "4-5", "8", "none"] in rows
    done = fleet.here("read-only", "off", "--node", "a", "--yes")
    assert done.returncode == 0, done.stderr
    assert ["a", "off", "2-3", "8", "0-1"] in [line.split() for line in done.stdout.splitlines()]
    assert triggers(fleet, "a") == {}
    assert triggers(fleet, "b") == {"shard4": OF_A_SHARD, "shard5": OF_A_SHARD}


# What is refused


def test_a_login_that_does_not_own_the_tables_is_refused(fleet: Fleet) -> None:
    fleet.execute(
        "a",
        f"ALTER ROLE {fleet.role} CREATEDB; GRANT ALL ON ALL TABLES IN SCHEMA shardctl"
        f" TO {fleet.role}",
    )
    done = fleet.here("read-only", "on", "2", "--yes")
    assert done.returncode == 0, done.stderr
    text = fleet.write().read_text()
    fleet.file.write_text(text.replace("database:\n", f"database:\n  user: {fleet.role}\n"))
    done = fleet.here_as_written("read-only", "off", "2", "--yes")
    assert done.returncode == 1
    assert "shard2.days" in done.stderr


# status and verify


def test_status_tells_which_since_when_and_by_whom(fleet: Fleet) -> None:
    switch(fleet, Wanted.on, 1, 2, 5)
    done = fleet.here("status", "--sample", "0")
    who = fleet.query("a", "SELECT DISTINCT who FROM shardctl.event")[0][0]
    assert who in done.stdout
    done = fleet.here("status", "--sample", "0", "-o", "json")
    a, b = json.loads(done.stdout)["nodes"]
    assert [(g["shards"], g["complete"], g["by"]) for g in a["read_only"]] == [([1, 2], True, who)]
    assert [g["shards"] for g in b["read_only"]] == [[5]]


HALF = {
    "a table made since": "CREATE TABLE {}.later (n integer)",
    "a trigger disabled": "ALTER TABLE {}.photos DISABLE TRIGGER shardctl_read_only",
    "a trigger dropped": "DROP TRIGGER shardctl_read_only ON {}.photos",
    "a trigger for less": (
        "CREATE OR REPLACE TRIGGER shardctl_read_only BEFORE INSERT ON {}.photos"
        " FOR EACH STATEMENT EXECUTE FUNCTION shardctl.refuse_write();"
        "ALTER TABLE {}.photos ENABLE ALWAYS TRIGGER shardctl_read_only"
    ),
}


def test_verify_finds_shards_of_which_not_all_refuses(fleet: Fleet) -> None:
    shards = range(len(HALF))
    switch(fleet, Wanted.on, *shards)
    before = {node: triggers(fleet, node) for node in "ab"}
    for shard, statement in zip(shards, HALF.values(), strict=True):
        fleet.execute("a", statement.format(*2 * [f"shard{shard}"]))
    found = verify(fleet, "leftovers")
    assert sorted(shard for one in found for shard in one.shards) == list(shards)
    for one in found:
        assert (one.code, one.severity) == ("read_only_in_part", "error")
    switch(fleet, Wanted.on, *shards)
    assert verify(fleet, "leftovers") == []
    for node, counts in before.items():
        after = triggers(fleet, node)
        assert all(after[schema] >= count for schema, count in counts.items())
    switch(fleet, Wanted.off, *shards)
    assert triggers(fleet, "a") == triggers(fleet, "b") == {}


# init and migrate


def test_a_migration_is_refused_while_a_shard_is_read_only(fleet: Fleet) -> None:
    switch(fleet, Wanted.on, 2)
    assert fleet.plan().changes() == []
    fleet.migration("0002_more.sql", "CREATE TABLE more (n integer)")
    for command in ("migrate", "init"):
        done = fleet.here(command)
        assert done.returncode == 1
        assert "0002_more.sql" in done.stderr
    with raises_code("shards_read_only"):
        fleet.plan()
    switch(fleet, Wanted.off, 2)
    assert fleet.here("migrate").returncode == 0


# Beside writers


@pytest.mark.long
def test_no_write_is_uncommitted_when_it_has_ended(fleet: Fleet) -> None:
    """Whatever rows there are at the end stay: nobody is left who could add one."""
    committed: list[int] = []

    def write() -> None:
        with fleet.connect("a") as session:
            try:
                while True:
                    with session.transaction():
                        session.execute(INSERT)
                        session.execute("SELECT pg_sleep(0.01)")
                    committed.append(1)
            except psycopg.errors.ReadOnlySqlTransaction:
                return

    with ThreadPoolExecutor(6) as beside:
        writers = [beside.submit(write) for _ in range(6)]
        wait_for(lambda: len(committed) > 20 or any(one.done() for one in writers))
        switch(fleet, Wanted.on, 2, wait_s=60.0)
        [(rows,)] = fleet.query("a", "SELECT count(*) FROM shard2.photos")
        assert [one.result() for one in writers] == [None] * 6
    assert fleet.query("a", "SELECT count(*) FROM shard2.photos") == [(rows,)]
    assert len(committed) == rows


@pytest.mark.long
def test_a_writer_that_does_not_end_is_named_and_the_others_are_done(fleet: Fleet) -> None:
    with fleet.connect("a") as session, session.transaction():
        session.execute(INSERT)
        with raises_code("shards_left") as left:
            switch(fleet, Wanted.on, 1, 2, 3, wait_s=0.3)
        assert left.value.exit_code == 3
        assert f"session {session.info.backend_pid} (" in left.value.message
        session.execute(INSERT)
    assert triggers(fleet, "a") == {"shard1": OF_A_SHARD, "shard3": OF_A_SHARD}
    switch(fleet, Wanted.on, 1, 2, 3)
    assert triggers(fleet, "a")["shard2"] == OF_A_SHARD


def test_a_table_that_is_dropped_meanwhile_holds_nothing_up(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_only_fleet.Changing.run

    def later(self: read_only_fleet.Changing, shards: Any) -> None:
        fleet.execute("a", "DROP TABLE shard2.likes")
        run(self, shards)

    monkeypatch.setattr(read_only_fleet.Changing, "run", later)
    switch(fleet, Wanted.on, 2, 3)
    assert triggers(fleet, "a") == {"shard2": OF_A_SHARD - 1, "shard3": OF_A_SHARD}
