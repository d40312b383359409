"""`shardctl read-only` as a user runs it, and what status, verify and migrate make of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardctl.topology import ranges
from tests.fixtures.fleets.read_only import (
    OF_A_SHARD,
    refused,
    switch_off,
    switch_on,
    triggers,
    writing,
)
from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.servers.postgres import PgServer


@pytest.fixture(scope="session")
def two_servers(safe_servers: dict[str, PgServer]) -> dict[str, PgServer]:
    """Let every fleet of this file be one of which all checks together tell nothing."""
    return safe_servers


# The command


def test_on_and_off_tell_the_plan_and_what_was_done(fleet_tables: Fleet) -> None:
    done = fleet_tables.here("read-only", "on", "2-5", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "done: 4 shards on 2 nodes refuse writes\n"
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["a", "on", "2-3", "8", "none"] in rows
    assert ["b", "on", "4-5", "8", "none"] in rows
    again = fleet_tables.here("read-only", "on", "2-5", "--yes")
    assert again.stdout == "nothing to do: 4 shards are already read-only\n"
    done = fleet_tables.here("read-only", "off", "--node", "a", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "done: 2 shards on 1 node accept writes\n"
    assert ["a", "off", "2-3", "8", "0-1"] in [line.split() for line in done.stdout.splitlines()]
    assert triggers(fleet_tables, "a") == {}
    assert triggers(fleet_tables, "b") == {"shard4": OF_A_SHARD, "shard5": OF_A_SHARD}


def test_json_gives_the_plan(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 3)
    done = fleet_tables.here("read-only", "on", "2-4", "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "format": 1,
        "cluster": "test",
        "read_only": "on",
        "nodes": [
            {"node": "a", "shards": [2], "tables": OF_A_SHARD, "unchanged": [3]},
            {"node": "b", "shards": [4], "tables": OF_A_SHARD, "unchanged": []},
        ],
    }
    assert triggers(fleet_tables, "a") == {"shard3": OF_A_SHARD}


def test_without_a_terminal_yes_is_required(fleet_tables: Fleet) -> None:
    done = fleet_tables.here("read-only", "on", "2")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert triggers(fleet_tables, "a") == {}


def test_bad_usage_contacts_nobody(fleet_tables: Fleet) -> None:
    with fleet_tables.at_ports(a=1, b=2):
        for arguments, said in (
            (("on",), "no shards given"),
            (("on", "2", "--node", "a"), "SHARDS and --node exclude each other"),
            (("off", "--node", "z"), "unknown node 'z'"),
            (("on", "2-99"), "shard 99 is not in the topology"),
            (("on", "2", "--wait", "soon"), "is not a duration"),
        ):
            done = fleet_tables.here("read-only", *arguments, "--yes")
            assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_half_done_is_exit_code_3_and_nothing_done_1(fleet_tables: Fleet) -> None:
    with writing(fleet_tables, "a", "shard2", application_name="import"):
        half = fleet_tables.here("read-only", "on", "2-3", "--wait", "100ms", "--yes")
        none = fleet_tables.here("read-only", "on", "2", "--wait", "0s", "--yes")
    assert half.returncode == 3
    assert "node a: shards 2 were not changed: session" in half.stderr
    assert "`shardctl read-only on` again" in half.stderr
    assert none.returncode == 1
    assert ", application import, idle in transaction, open since " in none.stderr


# What is refused


def test_a_node_that_is_away_keeps_all_from_being_changed(fleet_tables: Fleet) -> None:
    with fleet_tables.at_ports(b=free_ports(1)[0]):
        done = fleet_tables.here("read-only", "on", "2-5", "--yes")
    assert done.returncode == 1
    assert "node b (127.0.0.1:" in done.stderr
    assert triggers(fleet_tables, "a") == {}


def test_a_shard_that_is_not_there_is_refused(fleet_tables: Fleet) -> None:
    fleet_tables.execute("a", "ALTER SCHEMA shard2 RENAME TO shard2__retired_5f3a9c1e")
    done = fleet_tables.here("read-only", "on", "1-2", "--yes")
    assert done.returncode == 1
    assert "node a: shards 2 are not live on it" in done.stderr
    assert triggers(fleet_tables, "a") == {}


def test_a_server_that_is_another_node_is_refused(fleet_tables: Fleet) -> None:
    fleet_tables.servers = {"a": fleet_tables.servers["b"], "b": fleet_tables.servers["a"]}
    done = fleet_tables.here("read-only", "on", "2", "--yes")
    assert done.returncode == 1
    assert "the server is node b of cluster test" in done.stderr


def test_a_shard_without_tables_cannot_be_marked(new_fleet: Fleet) -> None:
    (new_fleet.directory / "migrations" / "0001_photos.sql").unlink()
    new_fleet.init()
    done = new_fleet.here("read-only", "on", "2", "--yes")
    assert done.returncode == 1
    assert "node a: shards 2 have no tables" in done.stderr
    assert new_fleet.here("read-only", "off", "2", "--yes").returncode == 0


def test_a_login_that_does_not_own_the_tables_is_refused(fleet_tables: Fleet) -> None:
    fleet_tables.execute(
        "a",
        f"ALTER ROLE {fleet_tables.role} CREATEDB; GRANT ALL ON ALL TABLES IN SCHEMA shardctl"
        f" TO {fleet_tables.role}",
    )
    done = fleet_tables.here("read-only", "on", "2", "--yes")
    assert done.returncode == 0, done.stderr
    text = fleet_tables.write().read_text()
    fleet_tables.file.write_text(
        text.replace("database:\n", f"database:\n  user: {fleet_tables.role}\n")
    )
    done = fleet_tables.here_as_written("read-only", "off", "2", "--yes")
    assert done.returncode == 1
    assert f"{fleet_tables.role} does not own shard2.days, shard2.days_1" in done.stderr


# status and verify


def test_status_tells_which_since_when_and_by_whom(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 1, 2, 5)
    done = fleet_tables.here("status", "--sample", "0")
    who = fleet_tables.query("a", "SELECT DISTINCT who FROM shardctl.event")[0][0]
    assert "read-only shards: 3\n" in done.stdout
    [line] = [one for one in done.stdout.splitlines() if one.startswith("  a: 1-2 since 20")]
    assert line.endswith(f" UTC, by {who}")
    done = fleet_tables.here("status", "--sample", "0", "-o", "json")
    a, b = json.loads(done.stdout)["nodes"]
    assert [(g["shards"], g["complete"], g["by"]) for g in a["read_only"]] == [([1, 2], True, who)]
    assert [g["shards"] for g in b["read_only"]] == [[5]]


def test_verify_notes_a_read_only_shard_and_calls_nothing_a_difference(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 2, 3)
    found = verify(fleet_tables)
    assert told(found) == [("leftovers", "read_only", "a", (2, 3), None)]
    assert found[0].severity == "note"
    assert "shardctl read-only off 2-3" in found[0].hint
    switch_off(fleet_tables, 2, 3)
    assert verify(fleet_tables) == []


HALF = {
    "a table made since": "CREATE TABLE {}.later (n integer)",
    "a partition made since": (
        "CREATE TABLE {0}.days_2 PARTITION OF {0}.days"
        " FOR VALUES FROM ('2027-01-01') TO ('2028-01-01')"
    ),
    "a trigger disabled": "ALTER TABLE {}.photos DISABLE TRIGGER shardctl_read_only",
    "a trigger that sleeps": "ALTER TABLE {}.photos ENABLE TRIGGER shardctl_read_only",
    "a trigger dropped": "DROP TRIGGER shardctl_read_only ON {}.photos",
    "a trigger for less": (
        "CREATE OR REPLACE TRIGGER shardctl_read_only BEFORE INSERT ON {}.photos"
        " FOR EACH STATEMENT EXECUTE FUNCTION shardctl.refuse_write();"
        "ALTER TABLE {}.photos ENABLE ALWAYS TRIGGER shardctl_read_only"
    ),
}


def test_verify_finds_shards_of_which_not_all_refuses(fleet_tables: Fleet) -> None:
    shards = range(len(HALF))
    switch_on(fleet_tables, *shards)
    before = {node: triggers(fleet_tables, node) for node in "ab"}
    for shard, statement in zip(shards, HALF.values(), strict=True):
        broken = statement.replace("{0}", "{}").replace("{}", f"shard{shard}")
        fleet_tables.execute("a" if shard < 4 else "b", broken)
    found = verify(fleet_tables, "leftovers")
    assert sorted(shard for one in found for shard in one.shards) == list(shards)
    for one in found:
        assert (one.code, one.severity) == ("read_only_in_part", "error")
        assert " tables refuse writes" in one.actual
        assert f"`shardctl read-only on {ranges.of(one.shards)}` to finish it" in one.hint
    assert "only " in fleet_tables.here("status", "--sample", "0").stdout
    switch_on(fleet_tables, *shards)
    assert {one.code for one in verify(fleet_tables, "leftovers")} == {"read_only"}
    for node, counts in before.items():
        after = triggers(fleet_tables, node)
        assert all(after[schema] >= count for schema, count in counts.items())
    switch_off(fleet_tables, *shards)
    assert triggers(fleet_tables, "a") == triggers(fleet_tables, "b") == {}


def test_a_trigger_of_ours_that_somebody_made_by_hand_is_told_and_goes(fleet_tables: Fleet) -> None:
    fleet_tables.execute(
        "a",
        "CREATE FUNCTION shardctl.refuse_write() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN new; END';"
        "CREATE TRIGGER mine BEFORE INSERT ON shard2.photos"
        " FOR EACH ROW EXECUTE FUNCTION shardctl.refuse_write()",
    )
    [finding] = verify(fleet_tables, "leftovers")
    assert finding.actual == f"0 of {OF_A_SHARD} tables refuse writes, by an unknown user"
    switch_off(fleet_tables, 2)
    assert triggers(fleet_tables, "a") == {}


# init and migrate


def test_a_migration_is_refused_while_a_shard_is_read_only(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 2)
    assert fleet_tables.plan().changes() == []
    fleet_tables.migration("0002_more.sql", "CREATE TABLE more (n integer)")
    for command in ("migrate", "init"):
        done = fleet_tables.here(command)
        assert done.returncode == 1
        assert "0002_more.sql is pending in shards 2, which are read-only" in done.stderr
        assert "`shardctl read-only off 2`" in done.stderr
    with raises_code("shards_read_only"):
        fleet_tables.plan()
    switch_off(fleet_tables, 2)
    assert fleet_tables.here("migrate").returncode == 0


def test_init_mends_the_rest_of_a_read_only_shard(fleet_tables: Fleet) -> None:
    switch_on(fleet_tables, 2)
    fleet_tables.execute("a", f"REVOKE USAGE ON SCHEMA shard2 FROM {fleet_tables.role}")
    fleet_tables.init()
    with fleet_tables.connect("a", user=fleet_tables.role) as session, refused(2):
        session.execute("DELETE FROM shard2.photos")


def test_the_triggers_function_needs_no_grant(fleet_tables: Fleet) -> None:
    fleet_tables.execute("a", "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    switch_on(fleet_tables, 2)
    assert fleet_tables.plan().changes() == []
    with fleet_tables.connect("a", user=fleet_tables.role) as session, refused(2):
        session.execute("DELETE FROM shard2.photos")
