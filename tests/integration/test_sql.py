"""`shardctl sql` that reads: where statements run, what their rows become, what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

from tests.fixtures.commands import here
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.fleets.rows import MOVE, Stated
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet

COUNT = "SELECT count(*) FROM photos"


def cells(table: str) -> list[list[str]]:
    """Give the words of a printed table's lines."""
    return [line.split() for line in table.splitlines() if line.strip(" ─")]


# Where it runs


def test_the_databases_say_who_owns_a_shard_and_the_file_does_not(fleet_rows: Stated) -> None:
    fleet_rows.fleet.shards = {"a": "0-2", "b": "3-7"}
    done = fleet_rows.sql(COUNT, "-o", "json", "--shards", "3")
    assert (done.returncode, json.loads(done.stdout)["node"]) == (0, "a")


def test_a_shard_whose_schema_has_lost_its_name_is_told_and_public_is_not_read(
    fleet_rows: Stated,
) -> None:
    fleet_rows.fleet.execute("a", f"ALTER SCHEMA shard2 RENAME TO shard2__retired_{MOVE}")
    done = fleet_rows.sql("SELECT 1", "-o", "tsv")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 7
    assert "shard2" in done.stderr


def test_a_node_that_cannot_be_reached_is_told_and_the_others_answer(fleet_rows: Stated) -> None:
    [port] = free_ports(1)
    with fleet_rows.fleet.at_ports(b=port):
        done = fleet_rows.sql(COUNT, "-o", "tsv")
        nodes = fleet_rows.sql("SELECT 1", "--nodes", "-o", "tsv")
    assert done.returncode == nodes.returncode == 1
    assert sorted(done.stdout.splitlines()) == ["0\t1", "1\t1", "2\t1", "3\t1"]
    assert str(port) in done.stderr
    assert nodes.stdout == "a\t1\n"


def test_a_session_that_breaks_fails_its_shard_and_those_behind_it(fleet_rows: Stated) -> None:
    breaks = (
        "SELECT CASE current_schema WHEN 'shard1' THEN pg_terminate_backend(pg_backend_pid()) END"
    )
    done = fleet_rows.sql(breaks, "--jobs", "1", "-o", "tsv")
    assert done.returncode == 1
    assert sorted(line.split("\t")[0] for line in done.stdout.splitlines()) == [
        "0", "4", "5", "6", "7",
    ]  # fmt: skip


# It only reads


def test_what_would_write_is_refused_and_nothing_is_changed(fleet_rows: Stated) -> None:
    for statement in (
        "INSERT INTO photos (user_id) VALUES (9)",
        "SELECT next_id()",
        "SET TRANSACTION READ WRITE; INSERT INTO photos (user_id) VALUES (9)",
        "SET default_transaction_read_only TO off; INSERT INTO photos (user_id) VALUES (9)",
        "DO $$ BEGIN COMMIT; INSERT INTO photos (user_id) VALUES (9); END $$",
        "DO $$ BEGIN ROLLBACK; SET TRANSACTION READ WRITE; DELETE FROM photos; END $$",
    ):
        done = fleet_rows.sql(statement)
        assert done.returncode == 1, statement
    assert fleet_rows.users() == list(range(8))
    assert fleet_rows.events() == []


def test_nothing_that_a_statement_sets_is_seen_by_the_next_shard(fleet_rows: Stated) -> None:
    text = (
        "SET search_path TO nowhere; PREPARE q AS SELECT 1; SET work_mem TO '1MB';"
        "SELECT set_config('app.x', 'y', false)"
    )
    done = fleet_rows.sql(text, "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert fleet_rows.rows("SELECT current_schema", "--jobs", "1") == [
        [f"shard{n}"] for n in range(8)
    ]


# What the rows become


def test_values_in_json_have_json_s_types_where_nothing_is_lost(fleet_rows: Stated) -> None:
    text = (
        "SELECT 1::int2, 2, 9007199254740993, 1.5::float8, 'NaN'::float8, true, NULL, 0.10,"
        " '[1, {\"a\": null}]'::jsonb, 'x'"
    )
    [line] = fleet_rows.lines(text, "--shards", "5")
    assert line["rows"] == [
        [1, 2, "9007199254740993", 1.5, "NaN", True, None, "0.10", [1, {"a": None}], "x"]
    ]
    assert [column["type"] for column in line["columns"]][:4] == ["int2", "int4", "int8", "float8"]
    assert (line["command"], line["error"]) == ("SELECT 1", None)


def test_shards_with_other_columns_are_shown_apart_and_never_misaligned(fleet_rows: Stated) -> None:
    fleet_rows.fleet.execute("b", "ALTER TABLE shard6.photos ADD about text DEFAULT 'x'")
    table = fleet_rows.sql("SELECT * FROM photos", "--shards", "5-6")
    tsv = fleet_rows.sql("SELECT * FROM photos", "-o", "tsv", "--shards", "5-6", "--jobs", "1")
    headers = [line for line in cells(table.stdout) if line[0] == "shard"]
    assert (table.returncode, headers) == (
        0, [["shard", "id", "user_id"], ["shard", "id", "user_id", "about"]],
    )  # fmt: skip
    assert (tsv.returncode, len(tsv.stdout.splitlines())) == (1, 1)
    assert "user_id" in tsv.stderr


# How it runs


def sleeping(fleet: Fleet) -> int:
    """Count the sessions on both nodes that sleep."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        " AND datname = current_database()"
    )
    return sum(fleet.query(node, query)[0][0] for node in "ab")


def test_ctrl_c_cancels_what_runs(fleet_rows: Stated) -> None:
    fleet = fleet_rows.fleet
    argv = command_line(fleet.write(), "sql", "SELECT pg_sleep(60)", "--jobs", "2")
    with ended(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)) as process:
        wait_for(lambda: sleeping(fleet) == 4)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert sleeping(fleet) == 0


def test_a_file_and_standard_input_can_have_the_statement(
    fleet_rows: Stated, tmp_path: Path
) -> None:
    file = tmp_path / "count.sql"
    file.write_text(f"-- how many\n{COUNT};\n")
    assert fleet_rows.rows("--file", str(file)) == [["1"]] * 8
    words = ["--topology", str(fleet_rows.fleet.write()), "sql", "--file", "-", "-o", "tsv"]
    done = here(*words, stdin=COUNT, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8
    assert fleet_rows.sql(COUNT, "--file", str(file)).returncode == 2
    assert fleet_rows.sql("--file", str(tmp_path / "none")).returncode == 2
