"""Rollouts over 2,000 shards: docs/howto/roll-out.md command by command, and a shard that fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets import rolled

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

LIKES = "0002_likes.sql"
RAN = f"SELECT count(*) FROM shardctl.migration WHERE file = '{LIKES}'"


@pytest.fixture
def fleet_2000(new_fleet: Fleet) -> Fleet:
    """Give 2,000 shards on two nodes, on which `init` has run."""
    new_fleet.count, new_fleet.shards = 2000, {"a": "0-999", "b": "1000-1999"}
    new_fleet.init()
    new_fleet.write()
    return new_fleet


@pytest.mark.timeout(1200)
def test_the_page_is_true_of_2000_shards(fleet_2000: Fleet) -> None:
    shown = rolled.carried_out(fleet_2000)
    rolled.prove(fleet_2000, shown)
    assert "2-999,1001-1999" in shown["status"][0].stdout


@pytest.mark.timeout(1200)
def test_a_migration_that_fails_in_the_seventh_shard(fleet_2000: Fleet) -> None:
    fleet_2000.execute("a", "CREATE TABLE shard6.likes (n int)")
    file = fleet_2000.migration(LIKES, "\nCREATE TABLE likes (n int);")
    done = fleet_2000.here("migrate", "--waves", "1%,100%", "--soak", "0s", "-o", "json")
    assert done.returncode == 3
    assert f'{file}:2: shard 6 on node a: relation "likes" already exists' in done.stderr
    rollout = json.loads(done.stdout)["rollout"]
    assert (rollout["state"], rollout["wave"], len(rollout["waves"][0])) == ("stopped", 1, 20)
    [(a,)], [(b,)] = fleet_2000.query("a", RAN), fleet_2000.query("b", RAN)
    assert a < 10
    assert b == 10
    fleet_2000.execute("a", "DROP TABLE shard6.likes")
    assert fleet_2000.here("migrate", "--continue").returncode == 0
    assert [fleet_2000.query(node, RAN) for node in "ab"] == [[(1000,)], [(1000,)]]
