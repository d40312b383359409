"""`pgbouncer render`, `diff` and `apply` where nothing is wrong."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from tests.fixtures.fleets.pooled import PooledFleet, leads, offered

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


def test_two_poolers_are_brought_to_what_each_should_offer(
    fleet_unapplied: PooledFleet, pooler_for: AddPooler
) -> None:
    second = pooler_for(fleet_unapplied, "p2")
    second.pooler = dataclasses.replace(second.pooler, aliases=("node",))
    assert "done: 1 pooler" in apply(fleet_unapplied, "p2")
    assert (offered(fleet_unapplied.pg_bouncer), offered(second)) == (
        {},
        leads(fleet_unapplied, shards=False),
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
