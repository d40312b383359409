"""What verify does beside its checks: choice, nodes that cannot be looked at, bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.keys import KeyLineInvalid
from shardctl.checks.verify import CheckNotFound
from shardctl.checks.verify import verify as examine
from shardctl.fanout import Silent
from shardctl.topology import loader
from tests.fixtures.verifying import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets import Fleet


def test_json_says_what_was_examined_and_is_valid_whatever_fails(healthy_fleet: Fleet) -> None:
    done = healthy_fleet.here("verify", "-o", "json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert report["ok"] is True
    assert report["counts"] == {"error": 0, "warning": 0, "note": 0}
    assert report["examined"] == {"nodes": 2, "shards": 8, "poolers": 0}
    assert report["findings"] == []
    missing = healthy_fleet.here("--topology", "nowhere.yaml", "verify", "-o", "json")
    assert missing.returncode == 2
    assert json.loads(missing.stdout)["errors"]


def test_a_healthy_fleet_is_told_in_one_line(healthy_fleet: Fleet) -> None:
    done = healthy_fleet.shardctl("verify", "--strict")
    assert done.stdout.startswith("all is well: 11 checks of 8 shards on 2 nodes in ")
    assert done.stdout.count("\n") == 1


def test_only_the_chosen_checks_run(healthy_fleet: Fleet) -> None:
    healthy_fleet.execute("a", "CREATE SCHEMA shard99; DROP TABLE shard1.photos")
    assert [code for _, code, *_ in told(verify(healthy_fleet, "map"))] == ["stray_schema"]
    assert [code for _, code, *_ in told(verify(healthy_fleet, "structure"))] == ["table_missing"]


def test_a_warning_fails_only_where_it_is_asked_to(healthy_fleet: Fleet) -> None:
    healthy_fleet.execute("a", "CREATE SCHEMA shard99")
    assert healthy_fleet.here("verify").returncode == 0
    assert healthy_fleet.here("verify", "--strict").returncode == 1


def test_an_unknown_check_is_bad_usage_and_the_known_are_named(healthy_fleet: Fleet) -> None:
    with pytest.raises(CheckNotFound, match="'maps' is no check") as refused:
        verify(healthy_fleet, "maps")
    assert "connection, identity, map" in refused.value.hint


def test_a_strange_server_is_told_whatever_was_asked(healthy_fleet: Fleet) -> None:
    healthy_fleet.execute("b", "UPDATE shardctl.cluster SET node = 'z'")
    assert told(verify(healthy_fleet, "clock")) == [("identity", "other_node", "b", (), None)]


def test_a_node_that_may_not_be_read_is_a_finding_and_the_others_are_checked(
    healthy_fleet: Fleet,
) -> None:
    healthy_fleet.execute("a", "CREATE SCHEMA shard99")
    text = healthy_fleet.write().read_text()
    role = healthy_fleet.role
    healthy_fleet.file.write_text(text.replace("app_roles", f"user: {role}\n  app_roles"))
    healthy_fleet.execute("a", f"ALTER ROLE {role} SUPERUSER")
    try:
        done = healthy_fleet.here_as_written("verify", "-o", "json")
    finally:
        healthy_fleet.execute("a", f"ALTER ROLE {role} NOSUPERUSER")
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 1
    codes = {(f["node"], f["code"]) for f in findings}
    assert {("b", "not_examined"), ("a", "stray_schema")} <= codes


def test_somebodys_lock_is_not_waited_for_for_ever(healthy_fleet: Fleet) -> None:
    with healthy_fleet.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shardctl.map IN ACCESS EXCLUSIVE MODE")
        [finding] = verify(healthy_fleet, "connection", "map")
    assert (finding.code, finding.node) == ("not_examined", "a")
    assert "lock timeout" in finding.actual


def test_a_malformed_key_line_is_said_before_anything_is_contacted(healthy_fleet: Fleet) -> None:
    file = healthy_fleet.migration("0002_key.sql", "-- shardctl: key photos\n")
    topology = loader.load(healthy_fleet.file)
    for node in "ab":
        healthy_fleet.servers[node].stop()
    try:
        with pytest.raises(KeyLineInvalid, match=f"{file}:1"):
            examine(topology, (), deep=False, progress=Silent())
    finally:
        for node in "ab":
            healthy_fleet.servers[node].start()
