"""Many shards at once, and all of them there and back again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.pgbouncer import render
from shardctl.topology import ranges

if TYPE_CHECKING:
    from tests.fixtures.moved import MovedFleet

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


def test_all_shards_of_a_node_go_to_another_and_back_again(moved: MovedFleet) -> None:
    """Each time with the rows of the last, and prune leaves nothing that `verify` would name."""
    wanted = dict.fromkeys(range(8), ROWS)
    fill(moved, *wanted)
    for number, (source, target) in enumerate(ROUTE):
        moved.move([0, 1, 2, 3], target)
        assert moved.owned()[target] == "0-3"
        assert moved.owned()[source] == "none"
        done = moved.here("prune", "--yes")
        assert (done.returncode, "done: 4 retired schemas" in done.stderr) == (0, True), done.stderr
        fill(moved, 0, 3)
        wanted = {s: n + ROWS * (s in (0, 3)) for s, n in wanted.items()}
        assert counts(moved) == wanted
        assert moved.problems() == []
        assert left(moved) == []
        for node in ("a", "b", target):
            assert moved.query(node, "SELECT FROM pg_replication_slots") == []
            assert moved.query(node, "SELECT map_version FROM shardctl.cluster") == [(number + 2,)]
    assert [move["state"] for move in moved.listed()] == len(ROUTE) * ["done"]
    ids = [
        row for shard in range(4) for row in moved.query("c", f"SELECT id FROM shard{shard}.photos")
    ]
    assert len(set(ids)) == len(ids) == sum(wanted[shard] for shard in range(4))


def test_what_an_earlier_move_retired_is_cloned_along_and_pruned_everywhere(
    moved: MovedFleet,
) -> None:
    moved.move([3], "c")
    moved.move([2], "d")
    query = "SELECT count(*) FROM pg_namespace WHERE nspname ~ '__retired_'"
    # On a: 3 and 2; on c: 0, 1, 2; on d: the copy of a's 3, and 0 and 1.
    assert [moved.query(node, query)[0][0] for node in "acd"] == [2, 3, 3]
    done = moved.here("prune", "--yes")
    assert (done.returncode, "done: 8 retired schemas" in done.stderr) == (0, True), done.stdout
    assert moved.problems() == []


def test_a_move_onto_a_node_whose_copies_nobody_has_pruned_takes_them_along(
    moved: MovedFleet,
) -> None:
    moved.move([0, 1, 2, 3], "c")
    moved.move([0, 1, 2, 3], "d")
    moved.move([0, 1], "c")  # its old server has retired copies of all four
    done = moved.here("prune", "--yes")
    assert done.returncode == 0, done.stderr
    assert moved.problems() == []
    assert left(moved) == []
    assert moved.owned() == {"a": "none", "b": "4-7", "c": "0-1", "d": "2-3"}


def test_half_of_many_shards_are_moved_in_one_cutover(many: MovedFleet) -> None:
    shards = list(range(0, 120, 2))
    world = many.move(shards, "c")
    assert world.timeline.pause_ms is not None
    topology = many.topology()
    assert ranges.of(topology.nodes["c"].shards) == ranges.of(shards)  # type: ignore[index]
    pooler = topology.poolers[many.pg_bouncer.pooler.name]
    with many.pg_bouncer.console() as console:
        offered = {name: alias.port for name, alias in console.databases().items()}
    assert offered == {e.alias: e.port for e in render.entries(topology, pooler)}
    assert (many.listed()[0]["state"], world.timeline.spans[-1][0]) == ("done", "confirm")
    done = many.here("prune", "--yes")
    assert (done.returncode, "done: 120 retired schemas" in done.stderr) == (0, True), done.stderr
    assert many.problems() == []
