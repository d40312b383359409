"""Read-only shards that move stay so, on their new node alone; and moves that refuse writes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.checks.status import observe
from shardctl.fanout import Silent
from shardctl.moves import handover
from shardctl.provision import fleet
from shardctl.provision.refusals import ShardsReadOnly
from shardctl.state.journal import MoveState
from tests.fixtures.lab import lose
from tests.fixtures.read_only import refused, switch_off, switch_on, triggers
from tests.fixtures.servers import wait_for

if TYPE_CHECKING:
    from tests.fixtures.lab import Lab
    from tests.fixtures.moved import MovedFleet

INSERT = "INSERT INTO photos (user_id) VALUES (1)"


def read_only(fleet: MovedFleet) -> dict[str, list[int]]:
    """Tell which shards of which node `status` calls read-only."""
    seen = observe(fleet.topology(), sample_s=0, progress=Silent())
    return {node.name: sorted(node.read_only) for node in seen.nodes if node.read_only}


def catalog(fleet: MovedFleet, node: str, schema: str) -> list[Any]:
    """Give what the catalog has on a schema's tables, but for the hint that they have triggers."""
    return fleet.query(
        node,
        "SELECT to_jsonb(c) - 'relhastriggers' - 'relfrozenxid' - 'relminmxid' - 'relpages'"
        " - 'reltuples' - 'relallvisible', (SELECT array_agg(g::text ORDER BY g.oid)"
        " FROM pg_trigger AS g WHERE g.tgrelid = c.oid)"
        f" FROM pg_class AS c WHERE relnamespace = '{schema}'::regnamespace ORDER BY c.oid",
    )


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


def test_a_move_that_refuses_writes_leaves_all_tables_as_they_were(moved: MovedFleet) -> None:
    switch_on(moved, 1, 2)
    before = {schema: catalog(moved, "a", schema) for schema in ("shard2", "shard3")}
    moved.move([2, 3], "c", read_only=True)
    assert moved.listed()[0]["state"] == "done"
    assert {schema: catalog(moved, "c", schema) for schema in before} == before
    assert read_only(moved) == {"a": [1], "c": [2]}
    with moved.pg_bouncer.connect("shard2") as session, refused(2):
        session.execute(INSERT)
    with moved.pg_bouncer.connect("shard3") as session:
        session.execute(INSERT)
    assert moved.problems() == []
    done = moved.here("prune", "--yes")
    assert (done.returncode, "done: 4 retired schemas" in done.stderr) == (0, True), done.stderr
    assert moved.problems() == []


def test_what_such_a_move_has_left_is_nothing_to_the_next(moved: MovedFleet) -> None:
    moved.move([2, 3], "c", read_only=True)
    moved.move([2, 3], "d", read_only=True)
    moved.move([0, 1], "c", read_only=True)
    for shard in range(4):
        with moved.pg_bouncer.connect(f"shard{shard}") as session:
            session.execute(INSERT)
    assert moved.owned() == {"a": "none", "b": "4-7", "c": "0-1", "d": "2-3"}
    assert moved.problems() == []


def test_the_plan_and_the_report_tell_what_writers_and_readers_see(moved: MovedFleet) -> None:
    given = ("move-shards", "2-3", "--to", "c", "--read-only")
    table = moved.here(*given, "--dry-run").stdout
    assert re.search(r"writes are refused +for about \d+ ms \(SQLSTATE 25006\)", table)
    assert re.search(r"reads wait +about \d+ ms", table)
    planned = json.loads(moved.here(*given, "--dry-run", "-o", "json").stdout)
    assert planned["predicted_refused_ms"] > 70
    assert 10 <= planned["predicted_pause_ms"] < planned["predicted_refused_ms"] / 2
    assert moved.listed() == []
    done = moved.here(*given, "--yes")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\nwrites were refused for \d+ ms\nreads waited at most \d+ ms ", done.stdout)
    assert "\nread-only: its cutover refuses writes" in moved.here("moves", "show").stdout
    shown = json.loads(moved.here("moves", "show", "-o", "json").stdout)
    assert shown["read_only"] is True
    assert shown["report"]["proof"] == "compared"
    assert shown["report"]["refused_ms"] > shown["report"]["pause_ms"] > 0
    names = [name for name, _ in shown["report"]["timeline"]]
    order = ["fence", "drain", "mark", "decide", "promote", "claim", "pause", "close", "route"]
    assert [name for name in names if name in order] == order


@pytest.mark.parametrize("closed", [False, True])
def test_a_target_that_is_destroyed_lets_the_source_take_writes_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    monkeypatch.setattr(handover, "promote", lose)
    stopped = lab.stopped([2, 3], "c", max_pause_s=1.5, read_only=True)
    assert stopped.state is MoveState.promoting
    monkeypatch.undo()
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        lab.put(2)
    lab.server("c").stop(mode="immediate")
    if closed:
        wait_for(lambda: "shard2" not in lab.schemas("a"), seconds=20)
    else:  # what it made would be lost, and no `read-only off` lets it in
        migration = lab.directory / "migrations" / "0002_more.sql"
        migration.write_text("CREATE TABLE more ()")
        with pytest.raises(ShardsReadOnly, match="pending in shards 2-3, which are read-only"):
            fleet.plan_init(lab.topology)
        migration.unlink()
    lab.abort(target_destroyed=True)
    assert lab.copy("a").state is MoveState.aborted
    lab.put(2)
    assert lab.ask("a", "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]
    assert lab.problems() == []
