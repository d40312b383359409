"""`pgbouncer render`, `diff` and `apply` where nothing is wrong."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from tests.fixtures.fleets.pooled import PooledFleet, leads, offered, reloads
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import AddPooler


def diff(fleet: PooledFleet, *names: str) -> list[tuple[str, str]]:
    """Give each pooler's name and state, and see that the exit code fits."""
    done = fleet.here("pgbouncer", "diff", "-o", "json", *names)
    found = json.loads(done.stdout)
    assert found["format"] == 1
    states = [(one["name"], one["state"]) for one in found["poolers"]]
    assert done.returncode == any(state != "same" for _, state in states)
    return states


def apply(fleet: PooledFleet, *arguments: str) -> str:
    """Apply, and give what was told."""
    done = fleet.here("pgbouncer", "apply", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_render_prints_the_file_that_apply_writes(fleet_unapplied: PooledFleet) -> None:
    done = fleet_unapplied.here("pgbouncer", "render")
    assert done.returncode == 0, done.stderr
    assert str(fleet_unapplied.database) in done.stdout
    assert fleet_unapplied.pg_bouncer.databases_file.read_text() == ""
    apply(fleet_unapplied)
    assert fleet_unapplied.pg_bouncer.databases_file.read_text() == done.stdout


def test_diff_is_a_unified_diff_and_its_json_has_the_versions(fleet_pooled: PooledFleet) -> None:
    file = fleet_pooled.pg_bouncer.databases_file
    fleet_pooled.raise_map_version()
    done = fleet_pooled.here("pgbouncer", "diff")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"--- {file}", f"+++ {file} (expected)"]
    assert {"-; map version: 1", "+; map version: 2"} < set(lines)
    told = fleet_pooled.here("pgbouncer", "diff", "-o", "json")
    assert json.loads(told.stdout) == {
        "format": 1,
        "poolers": [
            {
                "name": "p1", "file": str(file), "state": "differs",
                "map_version": {"file": 1, "wanted": 2}, "diff": done.stdout, "error": None,
            }
        ],
    }  # fmt: skip


def test_diff_knows_edited_files_from_outdated_ones(fleet_unapplied: PooledFleet) -> None:
    file = fleet_unapplied.pg_bouncer.databases_file
    apply(fleet_unapplied)
    text = file.read_text()
    file.write_text(text.replace("port=", "port=1", 1))
    assert diff(fleet_unapplied) == [("p1", "edited")]
    file.write_text("[databases]\nmine = host=127.0.0.1\n")
    assert diff(fleet_unapplied) == [("p1", "edited")]
    done = fleet_unapplied.here("pgbouncer", "diff")
    assert str(file) in done.stderr
    assert "127.0.0.1" in done.stdout
    file.unlink()
    assert diff(fleet_unapplied) == [("p1", "differs")]
    assert "/dev/null" in fleet_unapplied.here("pgbouncer", "diff").stdout


def test_apply_writes_loads_and_proves(fleet_unapplied: PooledFleet) -> None:
    pooler = fleet_unapplied.pg_bouncer
    apply(fleet_unapplied)
    assert offered(pooler) == leads(fleet_unapplied)
    before = pooler.databases_file.stat().st_mtime_ns, reloads(pooler)
    assert "nothing to do" in apply(fleet_unapplied)
    assert (pooler.databases_file.stat().st_mtime_ns, reloads(pooler)) == before


def test_the_alias_of_a_node_that_is_gone_vanishes(fleet_unapplied: PooledFleet) -> None:
    fleet_unapplied.waiting = {"c": free_ports(1)[0]}
    apply(fleet_unapplied)
    assert offered(fleet_unapplied.pg_bouncer) == leads(fleet_unapplied)
    assert f"{fleet_unapplied.database}_c" in offered(fleet_unapplied.pg_bouncer)
    fleet_unapplied.waiting = {}
    apply(fleet_unapplied)
    assert offered(fleet_unapplied.pg_bouncer) == leads(fleet_unapplied)
    assert f"{fleet_unapplied.database}_c" not in offered(fleet_unapplied.pg_bouncer)


def test_what_the_operator_offers_beside_stays(fleet_unapplied: PooledFleet) -> None:
    pooler = fleet_unapplied.pg_bouncer
    pooler.config.write_text(pooler.config.read_text() + "[databases]\nmine = host=127.0.0.1\n")
    apply(fleet_unapplied)
    assert offered(pooler) == leads(fleet_unapplied) | {"mine": 5432}
    assert "nothing to do" in apply(fleet_unapplied)


def test_two_poolers_are_brought_to_what_each_should_offer(
    fleet_unapplied: PooledFleet, pooler_for: AddPooler
) -> None:
    second = pooler_for(fleet_unapplied, "p2")
    second.pooler = dataclasses.replace(second.pooler, aliases=("node",))
    assert "done: 1 pooler" in apply(fleet_unapplied, "p2")
    assert (offered(fleet_unapplied.pg_bouncer), offered(second)) == (
        {},
        leads(fleet_unapplied, "node"),
    )
    assert "done: 1 pooler" in apply(fleet_unapplied)
    assert offered(fleet_unapplied.pg_bouncer) == leads(fleet_unapplied)
    assert diff(fleet_unapplied) == [("p1", "same"), ("p2", "same")]


def test_every_node_records_what_was_applied(fleet_pooled: PooledFleet) -> None:
    fleet_pooled.pg_bouncer.databases_file.write_text("")
    assert fleet_pooled.here("init").returncode == 0
    fleet_pooled.raise_map_version()
    apply(fleet_pooled)
    apply(fleet_pooled)
    for node in "ab":
        assert fleet_pooled.events(node) == [
            ("init", "pooler p1: map version 1"),
            ("pgbouncer apply", "pooler p1: map version 2"),
        ]
