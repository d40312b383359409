"""A read-only shard that moves stays read-only, on its new node and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.status import observe
from shardctl.fanout import Silent
from tests.fixtures.read_only import refused, switch_off, switch_on, triggers

if TYPE_CHECKING:
    from tests.fixtures.moved import MovedFleet

INSERT = "INSERT INTO photos (user_id) VALUES (1)"


def read_only(fleet: MovedFleet) -> dict[str, list[int]]:
    """Tell which shards of which node `status` calls read-only."""
    seen = observe(fleet.topology(), sample_s=0, progress=Silent())
    return {node.name: sorted(node.read_only) for node in seen.nodes if node.read_only}


def test_a_read_only_shard_moves_and_stays_so_until_it_is_off(moved: MovedFleet) -> None:
    with moved.pg_bouncer.connect("shard2") as session:
        session.execute(INSERT)
    switch_on(moved, 1, 2)
    moved.move([2, 3], "c")
    assert read_only(moved) == {"a": [1], "c": [2]}
    assert moved.listed()[0]["state"] == "done"
    with moved.pg_bouncer.connect("shard2") as session:
        with refused(2):
            session.execute(INSERT)
        assert session.execute("SELECT count(*) FROM photos").fetchone() == (1,)
    with moved.pg_bouncer.connect("shard3") as session:
        session.execute(INSERT)
    done = moved.here("prune", "--yes")
    assert (done.returncode, "done: 4 retired schemas" in done.stderr) == (0, True), done.stderr
    assert triggers(moved, "a") == {"shard1": 1}
    assert triggers(moved, "c") == {"shard2": 1}
    assert moved.problems() == []
    switch_off(moved, 2)
    with moved.pg_bouncer.connect("shard2") as session:
        session.execute(INSERT)
    assert read_only(moved) == {"a": [1]}
    assert moved.problems() == []


def test_a_retired_copy_is_no_shard_that_could_be_read_only(moved: MovedFleet) -> None:
    moved.move([2, 3], "c")
    switch_on(moved, 0, 2)
    assert read_only(moved) == {"a": [0], "c": [2]}
    assert triggers(moved, "a") == {"shard0": 1}
    done = moved.here("moves", "list", "-o", "json")
    assert done.returncode == 0
    assert moved.problems() == []
