"""Read-only shards that move stay so, on their new node alone; and moves that refuse writes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.checks.status import observe
from shardctl.fanout import Silent
from shardctl.moves import promotion
from shardctl.provision import fleet
from shardctl.state.journal import MoveState
from tests.fixtures.fleets.read_only import refused, switch_off, switch_on, triggers
from tests.fixtures.moves.own import lose
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab
    from tests.fixtures.moves.spares import MovedFleet

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


def test_a_read_only_shard_moves_and_stays_so_until_it_is_off(fleet_spares: MovedFleet) -> None:
    with fleet_spares.pg_bouncer.connect("shard2") as session:
        session.execute(INSERT)
    switch_on(fleet_spares, 1, 2)
    fleet_spares.move([2, 3], "c")
    assert read_only(fleet_spares) == {"a": [1], "c": [2]}
    assert fleet_spares.listed()[0]["state"] == "done"
    with fleet_spares.pg_bouncer.connect("shard2") as session:
        with refused(2):
            session.execute(INSERT)
        assert session.execute("SELECT count(*) FROM photos").fetchone() == (1,)
    with fleet_spares.pg_bouncer.connect("shard3") as session:
        session.execute(INSERT)
    done = fleet_spares.here("prune", "--yes")
    assert (done.returncode, "done: 4 retired schemas" in done.stderr) == (0, True), done.stderr
    assert triggers(fleet_spares, "a") == {"shard1": 1}
    assert triggers(fleet_spares, "c") == {"shard2": 1}
    assert fleet_spares.problems() == []
    switch_off(fleet_spares, 2)
    with fleet_spares.pg_bouncer.connect("shard2") as session:
        session.execute(INSERT)
    assert read_only(fleet_spares) == {"a": [1]}
    assert fleet_spares.problems() == []


def test_a_retired_copy_is_no_shard_that_could_be_read_only(fleet_spares: MovedFleet) -> None:
    fleet_spares.move([2, 3], "c")
    switch_on(fleet_spares, 0, 2)
    assert read_only(fleet_spares) == {"a": [0], "c": [2]}
    assert triggers(fleet_spares, "a") == {"shard0": 1}
    done = fleet_spares.here("moves", "list", "-o", "json")
    assert done.returncode == 0
    assert fleet_spares.problems() == []


def test_a_move_that_refuses_writes_leaves_all_tables_as_they_were(
    fleet_spares: MovedFleet,
) -> None:
    switch_on(fleet_spares, 1, 2)
    before = {schema: catalog(fleet_spares, "a", schema) for schema in ("shard2", "shard3")}
    fleet_spares.move([2, 3], "c", read_only=True)
    assert fleet_spares.listed()[0]["state"] == "done"
    assert {schema: catalog(fleet_spares, "c", schema) for schema in before} == before
    assert read_only(fleet_spares) == {"a": [1], "c": [2]}
    with fleet_spares.pg_bouncer.connect("shard2") as session, refused(2):
        session.execute(INSERT)
    with fleet_spares.pg_bouncer.connect("shard3") as session:
        session.execute(INSERT)
    assert fleet_spares.problems() == []
    done = fleet_spares.here("prune", "--yes")
    assert (done.returncode, "done: 4 retired schemas" in done.stderr) == (0, True), done.stderr
    assert fleet_spares.problems() == []


def test_what_such_a_move_has_left_is_nothing_to_the_next(fleet_spares: MovedFleet) -> None:
    fleet_spares.move([2, 3], "c", read_only=True)
    fleet_spares.move([2, 3], "d", read_only=True)
    fleet_spares.move([0, 1], "c", read_only=True)
    for shard in range(4):
        with fleet_spares.pg_bouncer.connect(f"shard{shard}") as session:
            session.execute(INSERT)
    assert fleet_spares.owned() == {"a": "none", "b": "4-7", "c": "0-1", "d": "2-3"}
    assert fleet_spares.problems() == []


def test_the_plan_and_the_report_tell_what_writers_and_readers_see(
    fleet_spares: MovedFleet,
) -> None:
    given = ("move-shards", "2-3", "--to", "c", "--read-only")
    table = fleet_spares.here(*given, "--dry-run").stdout
    assert re.search(r"writes are refused +for about \d+ ms \(SQLSTATE 25006\)", table)
    assert re.search(r"reads wait +about \d+ ms", table)
    planned = json.loads(fleet_spares.here(*given, "--dry-run", "-o", "json").stdout)
    assert planned["predicted_refused_ms"] > 70
    assert 10 <= planned["predicted_pause_ms"] < planned["predicted_refused_ms"] / 2
    assert fleet_spares.listed() == []
    done = fleet_spares.here(*given, "--yes")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"\nwrites were refused for \d+ ms; pause \d+ ms .*; no client waited", done.stdout
    )
    assert "\nread-only: its cutover refuses writes" in fleet_spares.here("moves", "show").stdout
    shown = json.loads(fleet_spares.here("moves", "show", "-o", "json").stdout)
    assert shown["read_only"] is True
    assert shown["report"]["proof"] == "compared"
    assert shown["report"]["refused_ms"] > shown["report"]["pause_ms"] > 0
    names = [name for name, _ in shown["report"]["timeline"]]
    order = ["fence", "drain", "mark", "decide", "promote", "claim", "pause", "close", "route"]
    assert [name for name in names if name in order] == order


@pytest.mark.parametrize("closed", [False, True])
def test_a_target_that_is_destroyed_lets_the_source_take_writes_again(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    monkeypatch.setattr(promotion, "take_over", lose)
    stopped = fleet_own.stopped([2, 3], "c", max_pause_s=1.5, read_only=True)
    assert stopped.state is MoveState.promoting
    monkeypatch.undo()
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        fleet_own.put(2)
    fleet_own.server("c").stop(mode="immediate")
    if closed:
        wait_for(lambda: "shard2" not in fleet_own.schemas("a"), seconds=20)
    else:  # what it made would be lost, and no `read-only off` lets it in
        migration = fleet_own.directory / "migrations" / "0002_more.sql"
        migration.write_text("CREATE TABLE more ()")
        with raises_code("shards_read_only", match="pending in shards 2-3, which are read-only"):
            fleet.plan_init(fleet_own.topology)
        migration.unlink()
    fleet_own.abort(target_destroyed=True)
    assert fleet_own.copy("a").state is MoveState.aborted
    fleet_own.put(2)
    assert fleet_own.ask("a", "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]
    assert fleet_own.problems() == []
