"""Migrations: once in every shard, in order, with errors that say where."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.fanout import Silent
from shardctl.provision import fleet
from shardctl.provision.plan import Options
from shardctl.state import lock
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def migrate(one: Fleet) -> None:
    fleet.carry_out(fleet.plan_migrate(one.topology()), Options(), Silent())


def failures(refused: pytest.ExceptionInfo[Problems]) -> list[ShardctlError]:
    return [error for error in refused.value.errors if error.code == "migration_failed"]


def test_migrate_runs_what_is_pending_in_the_order_of_numbers_and_shows_it_first(
    fleet_8: Fleet,
) -> None:
    fleet_8.migration("0002_likes.sql", "CREATE TABLE likes (id bigint DEFAULT next_id());")
    shown = fleet_8.here("migrate", "--dry-run", "-o", "json")
    assert [(c["node"], c["shards"], c["name"]) for c in json.loads(shown.stdout)["changes"]] == [
        ("a", [0, 1, 2, 3], "0002_likes.sql"),
        ("b", [4, 5, 6, 7], "0002_likes.sql"),
    ]
    migrate(fleet_8)
    assert fleet.plan_migrate(fleet_8.topology()).changes() == []
    assert fleet_8.query("b", "SELECT shardctl.id_shard(next_id) FROM shard6.next_id()") == [(6,)]
    fleet_8.migration("0010_b.sql", "ALTER TABLE t ADD COLUMN b int;")
    fleet_8.migration("0009_a.sql", "CREATE TABLE t (a int);")
    migrate(fleet_8)
    assert fleet_8.query("b", "SELECT a, b FROM shard7.t") == []


def test_migrate_refuses_where_init_has_more_to_do(new_fleet: Fleet) -> None:
    with raises_code("init_pending"):
        migrate(new_fleet)


@pytest.mark.parametrize("first_line", ["", "-- shardctl: no-transaction\n"])
def test_a_shard_fails_alone_and_its_detail_and_place_are_told(
    fleet_8: Fleet, first_line: str
) -> None:
    fleet_8.execute("a", "INSERT INTO shard2.photos (user_id) VALUES (7), (7)")
    text = f"{first_line}ALTER TABLE photos ADD n int;\nCREATE UNIQUE INDEX ON photos (user_id);\n"
    file = fleet_8.migration("0002_unique.sql", text)
    line = 2 + bool(first_line)
    done = fleet_8.here("migrate", "--yes", "-o", "json")
    assert done.returncode == 3
    failed, rest = json.loads(done.stdout)["errors"]
    assert (failed["code"], rest["code"]) == ("migration_failed", "node_unfinished")
    assert failed["message"].startswith(f"{file}:{line}: shard 2 ")
    assert failed["message"] in done.stderr
    ran = "SELECT shard FROM shardctl.migration WHERE file ~ '0002' ORDER BY 1"
    assert fleet_8.query("a", ran) == [(0,), (1,), (3,)]
    assert fleet_8.query("b", ran) == [(4,), (5,), (6,), (7,)]
    events = "SELECT result FROM shardctl.event WHERE command = 'migrate' ORDER BY id"
    assert fleet_8.query("a", events) == [
        ("begun",),
        ("ran: 0002_unique.sql in shards 0-1,3",),
        (f"failed: 0002_unique.sql:{line} in shards 2",),
        ("unfinished: 1",),
    ]


def test_a_file_whose_table_another_one_shadows_is_rolled_back(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", "DO 'BEGIN CREATE TABLE likes (n int); END';")
    fleet_8.execute("a", "CREATE TABLE public.likes (id int)")
    done = fleet_8.here("migrate", "--yes", "-o", "json")
    assert done.returncode == 3
    shadowed, rest = json.loads(done.stdout)["errors"]
    assert (shadowed["code"], rest["code"]) == ("table_shadowed", "node_unfinished")
    assert "public.likes" in shadowed["message"]
    assert fleet_8.query("a", "SELECT to_regclass('shard0.likes')") == [(None,)]
    fleet_8.execute("a", "DROP TABLE public.likes")
    migrate(fleet_8)


def test_migrate_tries_some_shards_first(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", "CREATE TABLE likes (n int);")
    assert fleet_8.here("migrate", "--yes", "--shards", "1-2,8").returncode == 2
    assert fleet_8.here("migrate", "--yes", "--shards", "1-2").returncode == 0
    ran = "SELECT shard FROM shardctl.migration WHERE file ~ '0002' ORDER BY 1"
    assert fleet_8.query("a", ran) == [(1,), (2,)]
    assert fleet_8.query("b", ran) == []
    migrate(fleet_8)
    assert fleet_8.query("a", ran) == [(0,), (1,), (2,), (3,)]


def test_a_lock_that_somebody_holds_is_given_up_and_named(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_alter.sql", "ALTER TABLE photos ADD COLUMN n int;")
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shard2.photos IN ACCESS SHARE MODE")
        with pytest.raises(Problems) as refused:
            fleet_8.init()
        # Nobody is held up by a migration that waits: it has let go.
        with fleet_8.connect("a") as reader:
            reader.execute("SET lock_timeout = '1s'")
            reader.execute("SELECT count(*) FROM shard2.photos")
    [failure] = failures(refused)
    assert "shard 2 " in str(failure)
    migrate(fleet_8)
    assert fleet_8.plan().changes() == []


def test_what_a_migration_leaves_in_its_session_ends_with_it(fleet_8: Fleet) -> None:
    careless = (
        "CREATE TEMP TABLE t (n int); SET search_path TO public; SET lock_timeout TO 1;"
        " SET standard_conforming_strings TO off; SET default_transaction_read_only TO on;"
        f" SET ROLE {fleet_8.role};"
    )
    for number, first_line in enumerate(("", "-- shardctl: no-transaction\n")):
        fleet_8.migration(f"001{number}_careless.sql", first_line + careless)
        created = f"{first_line}CREATE TABLE orders{number} (id bigint);"
        fleet_8.migration(f"002{number}_next.sql", created)
    migrate(fleet_8)
    for node in "ab":
        assert fleet_8.query(
            node,
            "SELECT count(*), bool_or(n.nspname = 'public') FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname ~ '^orders.$'",
        ) == [(8, False)]
    assert fleet_8.plan().changes() == []


def test_an_index_that_stayed_invalid_is_not_called_done(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as connection:
        connection.execute("INSERT INTO shard2.photos (user_id) VALUES (1), (1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(
                "CREATE UNIQUE INDEX CONCURRENTLY by_user ON shard2.photos (user_id)"
            )
    file = fleet_8.migration(
        "0002_index.sql",
        "-- shardctl: no-transaction\n"
        "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS by_user ON photos (user_id);\n",
    )
    with pytest.raises(Problems) as refused:
        migrate(fleet_8)
    [failure] = failures(refused)
    assert str(failure).startswith(f"{file}: shard 2 ")
    fleet_8.execute("a", "DROP INDEX shard2.by_user; DELETE FROM shard2.photos")
    migrate(fleet_8)
    assert fleet_8.plan().changes() == []


def told_json(one: Fleet, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = one.here("migrate", "-o", "json", *arguments)
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert "errors" not in found or found["errors"][0]["message"] in done.stderr
    return done.returncode, found


def test_json_tells_what_came_of_it_and_not_only_the_plan(fleet_8: Fleet) -> None:
    assert told_json(fleet_8)[1]["state"] == "unchanged"
    fleet_8.migration("0002_odd.sql", "DO $$ BEGIN ASSERT current_schema() <> 'shard6'; END $$;")
    code, planned = told_json(fleet_8, "--dry-run")
    assert (code, planned["state"], planned["summary"]) == (0, "planned", {"run": 2})
    topology = fleet_8.topology()
    with lock.held(topology, list(topology.nodes)[:1], command="a test"):
        code, refused = told_json(fleet_8)
    assert (code, refused["state"]) == (1, "refused")
    assert "a test" in refused["errors"][0]["message"]
    code, unfinished = told_json(fleet_8)
    assert (code, unfinished["state"]) == (3, "unfinished")
    assert [change["node"] for change in unfinished["changes"]] == ["a", "b"]


def test_a_session_that_breaks_costs_its_batch_and_no_more(fleet_8: Fleet) -> None:
    breaks = "PERFORM pg_terminate_backend(pg_backend_pid(), 60000)"
    fleet_8.migration(
        "0002_odd.sql", f"DO $$ BEGIN IF current_schema() = 'shard1' THEN {breaks}; END IF; END $$;"
    )
    with pytest.raises(Problems) as refused:
        migrate(fleet_8)
    assert [error.code for error in refused.value.errors] == ["node_lost", "node_unfinished"]
    assert refused.value.exit_code == 3
    ran = "SELECT shard FROM shardctl.migration WHERE file ~ '0002' ORDER BY 1"
    assert fleet_8.query("a", ran) == [(0,)]
    assert fleet_8.query("b", ran) == [(4,), (5,), (6,), (7,)]


WAITS = """
SELECT FROM pg_stat_activity WHERE datname = current_database()
AND (wait_event = 'PgSleep' OR wait_event_type = 'Lock')
"""
UNCHECKED = "ALTER TABLE shard2.photos ADD CONSTRAINT shardctl_key CHECK (user_id = 2) NOT VALID"


@pytest.mark.parametrize("pending", ["migration", "check"])
def test_ctrl_c_cancels_what_runs_and_nothing_of_it_stays(fleet_8: Fleet, pending: str) -> None:
    if pending == "migration":
        fleet_8.migration("0002_slow.sql", "CREATE TABLE slow (); SELECT pg_sleep(60);")
    else:
        fleet_8.execute("a", UNCHECKED)
    argv = command_line(fleet_8.write(), "migrate", "--yes", "--lock-timeout", "60s")
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shard2.photos IN SHARE UPDATE EXCLUSIVE MODE")
        with ended(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)) as process:
            wait_for(lambda: fleet_8.query("a", WAITS))
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    assert fleet_8.query("a", "SELECT to_regclass('shard0.slow')") == [(None,)]
    assert fleet_8.plan().changes() != []


def test_a_part_that_cannot_be_made_names_its_shard(fleet_8: Fleet) -> None:
    fleet_8.execute(
        "a", "DROP SEQUENCE shard1.next_id_seq; CREATE VIEW shard1.next_id_seq AS SELECT 1"
    )
    with pytest.raises(Problems) as refused:
        fleet_8.init()
    [failure] = [e for e in refused.value.errors if e.code == "shard_failed"]
    assert "shard 1" in str(failure)
