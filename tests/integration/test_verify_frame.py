"""What verify does beside its checks: choice, nodes that cannot be looked at, bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fixtures.fleets.verify import verify
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def test_json_says_what_was_examined_and_is_valid_whatever_fails(
    fleet_8: Fleet,
) -> None:
    done = fleet_8.here("verify", "-o", "json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert report["ok"] is True
    assert report["counts"] == {"error": 0, "warning": 0, "note": 0}
    assert report["examined"] == {"nodes": 2, "shards": 8, "poolers": 0}
    assert report["findings"] == []
    assert fleet_8.here("verify", "--strict").stdout.count("\n") == 1
    missing = fleet_8.here("--topology", "nowhere.yaml", "verify", "-o", "json")
    assert missing.returncode == 2
    assert json.loads(missing.stdout)["errors"]


def test_a_monitoring_plugin_gets_a_line_with_figures_and_a_code(
    fleet_8: Fleet,
) -> None:
    def plugin(*arguments: str) -> tuple[int, str]:
        done = fleet_8.here(*arguments, "verify", "--nagios")
        assert done.stdout.count("\n") == 1
        return done.returncode, done.stdout

    code, line = plugin()
    assert (code, line.partition(" in ")[0]) == (
        0, "SHARDCTL OK - all is well: 11 checks of 8 shards on 2 nodes",
    )  # fmt: skip
    assert " | errors=0;;0;0 warnings=0;0;;0 notes=0;;;0 nodes=2;;;0 shards=8;;;0 " in line
    fleet_8.execute("a", "SELECT pg_create_physical_replication_slot('left_over')")
    code, line = plugin()
    fleet_8.execute("a", "SELECT pg_drop_replication_slot('left_over')")
    assert (code, line.partition(" - ")[0]) == (1, "SHARDCTL WARNING")
    assert "; leftovers: node a: left_over: expected a replica that uses the slot" in line
    with fleet_8.at_ports(b=free_ports(1)[0]):
        code, line = plugin()
    assert (code, line.partition(" - ")[0]) == (2, "SHARDCTL CRITICAL")
    code, line = plugin("--topology", "nowhere.yaml")
    assert (code, line.partition(": ")[0]) == (3, "SHARDCTL UNKNOWN - nowhere.yaml")
    for wrong in ("--nope", "--strict"):
        assert fleet_8.here("verify", "--nagios", wrong).returncode == 3


def test_somebodys_lock_is_not_waited_for_for_ever(fleet_8: Fleet) -> None:
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shardctl.map IN ACCESS EXCLUSIVE MODE")
        [finding] = verify(fleet_8, "connection", "map")
    assert (finding.code, finding.node) == ("not_examined", "a")


def test_of_a_newer_journal_nothing_is_read(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "ALTER TABLE shardctl.move RENAME TO moves")
    fleet_8.execute("a", "UPDATE shardctl.cluster SET format = 99")
    assert [f.code for f in verify(fleet_8, "leftovers")] == ["format_newer"]
