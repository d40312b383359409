"""Many shards at once, and all of them there and back again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.pgbouncer import render
from shardctl.topology import ranges

if TYPE_CHECKING:
    from tests.fixtures.moves.spares import MovedFleet

ROUTE = (("a", "c"), ("c", "d"), ("d", "c"))
ROWS = 7


def fill(fleet: MovedFleet, *shards: int) -> None:
    """Insert rows into shards through their aliases."""
    for shard in shards:
        with fleet.pg_bouncer.connect(f"shard{shard}") as session:
            session.execute(
                "INSERT INTO photos (user_id) SELECT n FROM generate_series(1, %s) n", [ROWS]
            )


def counts(fleet: MovedFleet) -> dict[int, int]:
    """Count the rows of every shard through its alias."""
    found = {}
    for shard in range(8):
        with fleet.pg_bouncer.connect(f"shard{shard}") as session:
            ((found[shard],),) = session.execute("SELECT count(*) FROM photos")
    return found


def left(fleet: MovedFleet) -> list[str]:
    """Name what lies where the clones were made, beside the data directories and their logs."""
    folder = fleet.places["c"].parent
    allowed = {f"{name}{end}" for name in fleet.places for end in ("", ".log")}
    return sorted({file.name for file in folder.iterdir()} - allowed)


def test_all_shards_of_a_node_go_to_another_and_back_again(fleet_spares: MovedFleet) -> None:
    """Each time with the rows of the last, and prune leaves nothing that `verify` would name."""
    wanted = dict.fromkeys(range(8), ROWS)
    fill(fleet_spares, *wanted)
    for number, (source, target) in enumerate(ROUTE):
        fleet_spares.move([0, 1, 2, 3], target)
        assert fleet_spares.owned()[target] == "0-3"
        assert fleet_spares.owned()[source] == "none"
        done = fleet_spares.here("prune", "--yes")
        assert (done.returncode, "done: 4 retired schemas" in done.stderr) == (0, True), done.stderr
        fill(fleet_spares, 0, 3)
        wanted = {s: n + ROWS * (s in (0, 3)) for s, n in wanted.items()}
        assert counts(fleet_spares) == wanted
        assert fleet_spares.problems() == []
        assert left(fleet_spares) == []
        for node in ("a", "b", target):
            assert fleet_spares.query(node, "SELECT FROM pg_replication_slots") == []
            assert fleet_spares.query(node, "SELECT map_version FROM shardctl.cluster") == [
                (number + 2,)
            ]
    assert [move["state"] for move in fleet_spares.listed()] == len(ROUTE) * ["done"]
    ids = [
        row
        for shard in range(4)
        for row in fleet_spares.query("c", f"SELECT id FROM shard{shard}.photos")
    ]
    assert len(set(ids)) == len(ids) == sum(wanted[shard] for shard in range(4))


def test_half_of_many_shards_are_moved_in_one_cutover(fleet_spares_120: MovedFleet) -> None:
    shards = list(range(0, 120, 2))
    world = fleet_spares_120.move(shards, "c")
    assert world.timeline.pause_ms is not None
    topology = fleet_spares_120.topology()
    assert ranges.of(topology.nodes["c"].shards) == ranges.of(shards)  # type: ignore[index]
    pooler = topology.poolers[fleet_spares_120.pg_bouncer.pooler.name]
    with fleet_spares_120.pg_bouncer.console() as console:
        offered = {name: alias.port for name, alias in console.databases().items()}
    assert offered == {e.alias: e.port for e in render.entries(topology, pooler)}
    assert (fleet_spares_120.listed()[0]["state"], world.timeline.spans[-1][0]) == (
        "done",
        "confirm",
    )
    done = fleet_spares_120.here("prune", "--yes")
    assert (done.returncode, "done: 120 retired schemas" in done.stderr) == (0, True), done.stderr
    assert fleet_spares_120.problems() == []
