"""`events`: the audit trails of real nodes, merged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def listed(fleet: Fleet, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = fleet.here("events", "-o", "json", *arguments)
    assert done.returncode == code, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["events"]
    return found


def test_the_trails_of_all_nodes_are_one_by_time_with_the_files_that_ran(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", "CREATE TABLE likes (n int);")
    assert fleet_8.here("migrate").returncode == 0
    found = listed(fleet_8)
    assert [one["time"] for one in found] == sorted(one["time"] for one in found)
    migrated = {(*one["nodes"], one["result"]) for one in found if one["command"] == "migrate"}
    assert migrated >= {
        ("a", "ran: 0002_likes.sql in shards 0-3"),
        ("b", "ran: 0002_likes.sql in shards 4-7"),
        ("b", "done"),
    }
    assert all("@" in one["by"] for one in found)
    assert {*map(tuple, (one["nodes"] for one in listed(fleet_8, "--node", "b")))} == {("b",)}
    assert fleet_8.here("events", "--since", "0s").stdout.startswith("no event since ")
    assert "ran: 0002_likes.sql" in fleet_8.here("events", "--since", "1h").stdout
    with fleet_8.at_ports(b=free_ports(1)[0]):
        assert {*map(tuple, (one["nodes"] for one in listed(fleet_8, code=3)))} == {("a",)}


def admit(fleet: Fleet, allowed: str) -> None:
    """Let node b accept logins to the database, or refuse them."""
    with fleet.servers["b"].connect() as connection:
        name = sql.Identifier(fleet.database)
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        connection.execute(allow.format(name, sql.SQL(allowed)))


@pytest.mark.long
def test_events_are_followed_as_they_come_of_a_node_that_was_away_too(fleet_8: Fleet) -> None:
    admit(fleet_8, "false")
    command = command_line(fleet_8.write(), "events", "--follow", "-o", "json")
    environment = os.environ | {"XDG_STATE_HOME": str(fleet_8.directory / "state")}
    with ended(
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    ) as process:
        assert process.stdout
        first = json.loads(process.stdout.readline())
        assert process.stderr
        away = process.stderr.readline()
        admit(fleet_8, "true")
        values = "(now() - interval '1 hour', 'ann@ops1', 'migrate', 'done')"
        insert = "INSERT INTO shardctl.event (at, who, command, result) VALUES"
        fleet_8.execute("b", f"{insert} {values}")
        seen = [first]
        while seen[-1]["by"] != "ann@ops1":
            seen.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (0, "")
    assert "node b" in away
    assert seen[-1]["nodes"] == ["b"]
    seen += map(json.loads, rest.splitlines())
    assert len({json.dumps(one) for one in seen}) == len(seen)
