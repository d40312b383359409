"""`shardctl read-only` as a user runs it, and what status, verify and migrate make of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.status import observe
from shardctl.errors import Problems
from shardctl.fanout import Silent
from shardctl.provision.refusals import ShardsReadOnly
from shardctl.topology import ranges
from tests.fixtures.read_only import (
    OF_A_SHARD,
    refused,
    switch_off,
    switch_on,
    triggers,
    writing,
)
from tests.fixtures.verifying import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets import Fleet
    from tests.fixtures.servers import PgServer


@pytest.fixture(scope="session")
def two_servers(safe_servers: dict[str, PgServer]) -> dict[str, PgServer]:
    """Let every fleet of this file be one of which all checks together tell nothing."""
    return safe_servers


# The command


def test_on_and_off_tell_the_plan_and_what_was_done(tables_8: Fleet) -> None:
    done = tables_8.here("read-only", "on", "2-5", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "done: 4 shards on 2 nodes refuse writes\n"
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["a", "on", "2-3", "8", "none"] in rows
    assert ["b", "on", "4-5", "8", "none"] in rows
    again = tables_8.here("read-only", "on", "2-5", "--yes")
    assert again.stdout == "nothing to do: 4 shards are read-only already\n"
    done = tables_8.here("read-only", "off", "--node", "a", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "done: 2 shards on 1 node take writes\n"
    assert ["a", "off", "2-3", "8", "0-1"] in [line.split() for line in done.stdout.splitlines()]
    assert triggers(tables_8, "a") == {}
    assert triggers(tables_8, "b") == {"shard4": OF_A_SHARD, "shard5": OF_A_SHARD}


def test_json_gives_the_plan(tables_8: Fleet) -> None:
    switch_on(tables_8, 3)
    done = tables_8.here("read-only", "on", "2-4", "--dry-run", "-o", "json")
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
    assert triggers(tables_8, "a") == {"shard3": OF_A_SHARD}


def test_without_a_terminal_yes_is_required(tables_8: Fleet) -> None:
    done = tables_8.shardctl("read-only", "on", "2")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert triggers(tables_8, "a") == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("on",), "which shards is not clear"),
        (("on", "2", "--node", "a"), "which shards is not clear"),
        (("off", "--node", "z"), "'z' is no node"),
        (("on", "2-99"), "shard 99 is not in the topology"),
        (("on", "2", "--wait", "soon"), "is not a duration"),
    ],
)
def test_bad_usage_contacts_nobody(tables_8: Fleet, arguments: tuple[str, ...], said: str) -> None:
    done = tables_8.here("read-only", *arguments, "--yes")
    assert done.returncode == 2
    assert said in done.stderr


def test_half_done_is_exit_code_3_and_nothing_done_1(tables_8: Fleet) -> None:
    with writing(tables_8, "a", "shard2", application_name="import"):
        half = tables_8.here("read-only", "on", "2-3", "--wait", "100ms", "--yes")
        none = tables_8.here("read-only", "on", "2", "--wait", "0s", "--yes")
    assert half.returncode == 3
    assert "node a: left are shards 2: session" in half.stderr
    assert "`shardctl read-only on` again" in half.stderr
    assert none.returncode == 1
    assert "(import, idle in transaction" in none.stderr


# What is refused


def test_a_node_that_is_away_keeps_all_from_being_changed(tables_8: Fleet) -> None:
    server = tables_8.servers["b"]
    server.stop()
    try:
        done = tables_8.here("read-only", "on", "2-5", "--yes")
    finally:
        server.start()
    assert done.returncode == 1
    assert "node b (127.0.0.1:" in done.stderr
    assert triggers(tables_8, "a") == {}


def test_a_shard_that_is_not_there_is_refused(tables_8: Fleet) -> None:
    tables_8.execute("a", "ALTER SCHEMA shard2 RENAME TO shard2__retired_5f3a9c1e")
    done = tables_8.here("read-only", "on", "1-2", "--yes")
    assert done.returncode == 1
    assert "node a: shards 2 are not live there" in done.stderr
    assert triggers(tables_8, "a") == {}


def test_a_stale_topology_is_refused(tables_8: Fleet) -> None:
    tables_8.execute("a", "UPDATE shardctl.map SET node = 'b' WHERE shard = 2")
    done = tables_8.here("read-only", "on", "2", "--yes")
    assert done.returncode == 1
    assert "node a: shards 2 are not live there" in done.stderr


def test_a_server_that_is_another_node_is_refused(tables_8: Fleet) -> None:
    tables_8.servers = {"a": tables_8.servers["b"], "b": tables_8.servers["a"]}
    done = tables_8.here("read-only", "on", "2", "--yes")
    assert done.returncode == 1
    assert "the server there is node b of cluster test" in done.stderr


def test_a_shard_without_tables_cannot_be_marked(fresh_fleet: Fleet) -> None:
    (fresh_fleet.directory / "migrations" / "0001_photos.sql").unlink()
    fresh_fleet.init()
    done = fresh_fleet.here("read-only", "on", "2", "--yes")
    assert done.returncode == 1
    assert "node a: shards 2 have no tables" in done.stderr
    assert fresh_fleet.here("read-only", "off", "2", "--yes").returncode == 0


def test_a_login_that_does_not_own_the_tables_is_refused(tables_8: Fleet) -> None:
    tables_8.execute(
        "a",
        f"ALTER ROLE {tables_8.role} CREATEDB; GRANT ALL ON ALL TABLES IN SCHEMA shardctl"
        f" TO {tables_8.role}",
    )
    done = tables_8.here("read-only", "on", "2", "--yes")
    assert done.returncode == 0, done.stderr
    text = tables_8.write().read_text()
    tables_8.file.write_text(text.replace("database:\n", f"database:\n  user: {tables_8.role}\n"))
    done = tables_8.here_as_written("read-only", "off", "2", "--yes")
    assert done.returncode == 1
    assert f"{tables_8.role} does not own shard2.days, shard2.days_1" in done.stderr


# status and verify


def test_status_tells_which_since_when_and_by_whom(tables_8: Fleet) -> None:
    switch_on(tables_8, 1, 2, 5)
    done = tables_8.here("status", "--sample", "0")
    who = tables_8.query("a", "SELECT DISTINCT who FROM shardctl.event")[0][0]
    assert "read-only shards: 3\n" in done.stdout
    [line] = [one for one in done.stdout.splitlines() if one.startswith("  a: 1-2 since 20")]
    assert line.endswith(f" UTC, by {who}")
    done = tables_8.here("status", "--sample", "0", "-o", "json")
    a, b = json.loads(done.stdout)["nodes"]
    assert [(g["shards"], g["complete"], g["by"]) for g in a["read_only"]] == [([1, 2], True, who)]
    assert [g["shards"] for g in b["read_only"]] == [[5]]


def test_status_tells_nothing_where_no_shard_is_read_only(tables_8: Fleet) -> None:
    assert "read-only" not in tables_8.here("status", "--sample", "0").stdout
    nodes = observe(tables_8.topology(), sample_s=0, progress=Silent()).nodes
    assert [node.as_json()["read_only"] for node in nodes] == [[], []]


def test_verify_notes_a_read_only_shard_and_calls_nothing_a_difference(tables_8: Fleet) -> None:
    switch_on(tables_8, 2, 3)
    found = verify(tables_8)
    assert told(found) == [("leftovers", "read_only", "a", (2, 3), None)]
    assert found[0].severity == "note"
    assert "shardctl read-only off 2-3" in found[0].hint
    switch_off(tables_8, 2, 3)
    assert verify(tables_8) == []


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


def test_verify_finds_shards_of_which_not_all_refuses(tables_8: Fleet) -> None:
    shards = range(len(HALF))
    switch_on(tables_8, *shards)
    before = {node: triggers(tables_8, node) for node in "ab"}
    for shard, statement in zip(shards, HALF.values(), strict=True):
        broken = statement.replace("{0}", "{}").replace("{}", f"shard{shard}")
        tables_8.execute("a" if shard < 4 else "b", broken)
    found = verify(tables_8, "leftovers")
    assert sorted(shard for one in found for shard in one.shards) == list(shards)
    for one in found:
        assert (one.code, one.severity) == ("read_only_in_part", "error")
        assert " tables refuse writes" in one.actual
        assert f"`shardctl read-only on {ranges.of(one.shards)}` finishes it" in one.hint
    assert "only " in tables_8.here("status", "--sample", "0").stdout
    switch_on(tables_8, *shards)
    assert {one.code for one in verify(tables_8, "leftovers")} == {"read_only"}
    for node, counts in before.items():
        after = triggers(tables_8, node)
        assert all(after[schema] >= count for schema, count in counts.items())
    switch_off(tables_8, *shards)
    assert triggers(tables_8, "a") == triggers(tables_8, "b") == {}


def test_a_trigger_of_ours_that_somebody_made_by_hand_is_told_and_goes(tables_8: Fleet) -> None:
    tables_8.execute(
        "a",
        "CREATE FUNCTION shardctl.refuse_write() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN new; END';"
        "CREATE TRIGGER mine BEFORE INSERT ON shard2.photos"
        " FOR EACH ROW EXECUTE FUNCTION shardctl.refuse_write()",
    )
    [finding] = verify(tables_8, "leftovers")
    assert finding.actual == f"0 of {OF_A_SHARD} tables refuse writes, by somebody"
    switch_off(tables_8, 2)
    assert triggers(tables_8, "a") == {}


# init and migrate


def test_a_migration_is_refused_while_a_shard_is_read_only(tables_8: Fleet) -> None:
    switch_on(tables_8, 2)
    assert tables_8.plan().changes() == []
    tables_8.migration("0002_more.sql", "CREATE TABLE more (n integer)")
    for command in ("migrate", "init"):
        done = tables_8.here(command)
        assert done.returncode == 1
        assert "0002_more.sql is pending in shards 2, which are read-only" in done.stderr
        assert "`shardctl read-only off 2`" in done.stderr
    with pytest.raises(ShardsReadOnly):
        tables_8.plan()
    switch_off(tables_8, 2)
    assert tables_8.here("migrate").returncode == 0


def test_init_mends_the_rest_of_a_read_only_shard(tables_8: Fleet) -> None:
    switch_on(tables_8, 2)
    tables_8.execute("a", f"REVOKE USAGE ON SCHEMA shard2 FROM {tables_8.role}")
    tables_8.init()
    with tables_8.connect("a", user=tables_8.role) as session, refused(2):
        session.execute("DELETE FROM shard2.photos")


def test_the_triggers_function_needs_no_grant(tables_8: Fleet) -> None:
    tables_8.execute("a", "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    switch_on(tables_8, 2)
    assert tables_8.plan().changes() == []
    with tables_8.connect("a", user=tables_8.role) as session, refused(2):
        session.execute("DELETE FROM shard2.photos")


def test_all_nodes_read_only_shards_are_told_at_once(tables_8: Fleet) -> None:
    switch_on(tables_8, 2, 5)
    tables_8.migration("0002_more.sql", "CREATE TABLE more (n integer)")
    with pytest.raises(Problems) as told_both:
        tables_8.plan()
    kinds = [type(error) for error in told_both.value.errors]
    assert kinds == [ShardsReadOnly, ShardsReadOnly]
