"""Moves that stop, go on and are aborted as a user does it, and what is left of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardctl.moves import conclusion
from shardctl.moves.methods import METHODS
from shardctl.moves.plan import METHOD
from shardctl.moves.step import drive
from shardctl.state import lock
from tests.integration.test_moves_cli import everything, nothing_changes, one_json

if TYPE_CHECKING:
    import pytest

    from tests.fixtures.moves.spares import MovedFleet


def test_with_json_a_whole_move_prints_its_result_alone(fleet_spares: MovedFleet) -> None:
    done = fleet_spares.here(
        "move-shards", "--from", "a", "--all", "--to", "c", "--yes", "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    found = one_json(done)
    assert (found["state"], found["shards"]) == ("done", [0, 1, 2, 3])
    assert found["report"]["proof"] == "compared"
    assert fleet_spares.owned() == {"a": "none", "b": "4-7", "c": "0-3", "d": "none"}
    assert fleet_spares.here("prune", "--yes", "--now").returncode == 0
    assert fleet_spares.problems() == []


def test_an_unfinished_move_is_aborted_after_a_question(fleet_spares: MovedFleet) -> None:
    before = everything(fleet_spares)
    world = fleet_spares.world([2, 3], "c")
    drive(world, METHODS[METHOD].steps[:-3], lambda _: None)
    running = fleet_spares.listed()[0]
    assert (running["state"], running["can"]) == ("running", [])
    topology = fleet_spares.topology()
    for arguments in (["resume"], ["resume", "--dry-run"], ["abort", "--dry-run"]):
        busy = fleet_spares.here("moves", *arguments)
        assert "node a is being changed by shardctl move-shards" in busy.stderr
        assert busy.returncode == 1
    world.close()
    unfinished = fleet_spares.listed()[0]
    assert (unfinished["state"], unfinished["can"]) == ("unfinished", ["resume", "abort"])
    second = fleet_spares.here("move-shards", "1", "--to", "d", "--yes")
    assert f"move {world.plan.id} (a to c, started by " in second.stderr
    assert second.returncode == 1
    assert (
        fleet_spares.here("prune", "--yes").stdout
        == "nothing to prune: no node has retired schemas\n"
    )

    with nothing_changes(fleet_spares):
        for arguments, code in ((["--dry-run"], 0), ([], 2)):
            done = fleet_spares.here("moves", "abort", *arguments)
            assert done.returncode == code, done.stderr
        assert fleet_spares.here("moves", "resume", "--dry-run").returncode == 0
    done = fleet_spares.here("moves", "abort", "--yes")
    assert done.returncode == 0, done.stderr
    assert "node a still owns its shards" in done.stderr
    assert f"move {world.plan.id}: undo clone\n" in done.stderr
    assert "undo cutover" not in done.stderr, "it had not begun"
    assert [m["state"] for m in fleet_spares.listed()] == ["aborted"]
    # The journal and the audit trail know of it, and nothing else does.
    after = everything(fleet_spares)
    assert [row[0][:3] for row in after[:2]] == [row[0][:3] for row in before[:2]]
    assert after[2:] == before[2:]
    assert after[0][0][5] is None
    for verb in ("resume", "abort"):
        done = fleet_spares.here("moves", verb, world.plan.id, "--yes")
        assert done.returncode == 1
        assert f"move {world.plan.id} has ended: state aborted" in done.stderr
    lock.hold(topology, topology.owning()[0], command="test").close()


def test_a_move_goes_on_where_it_stopped_unless_the_topology_is_another(
    fleet_spares: MovedFleet,
) -> None:
    world = fleet_spares.world([2, 3], "c")
    drive(world, METHODS[METHOD].steps[:-3], lambda _: None)
    world.close()
    text = fleet_spares.file.read_text()
    port = str(fleet_spares.pg_bouncer.port)
    fleet_spares.file.write_text(text.replace(f"port: {port}", f"port: {int(port) + 1}"))
    for verb in ("resume", "abort"):
        done = fleet_spares.here("moves", verb, "--yes")
        assert done.returncode == 1
        assert (
            f"poolers.p1.port changed in the topology: expected {port}, found {int(port) + 1}"
            in done.stderr
        )
    fleet_spares.file.write_text(text)
    done = fleet_spares.here("moves", "resume")
    assert done.returncode == 0, done.stderr
    assert "no client waited" in done.stdout
    assert fleet_spares.listed()[0]["state"] == "done"
    again = fleet_spares.here("moves", "resume", world.plan.id)
    assert (again.returncode, "has ended: state done" in again.stderr) == (1, True)
    past = fleet_spares.here("moves", "abort", world.plan.id, "--yes")
    assert (past.returncode, "has ended: state done" in past.stderr) == (1, True)


def test_a_file_that_was_changed_meanwhile_is_left_and_what_to_write_is_told(
    fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fleet_spares.write()
    mine = path.read_text().replace("shards: {count", "move: {retain: 1h}\nshards: {count")
    spread = conclusion.spread_map

    def meanwhile(*given: Any) -> None:
        path.write_text(mine)
        spread(*given)

    monkeypatch.setattr(conclusion, "spread_map", meanwhile)
    done = fleet_spares.here("move-shards", "2-3", "--to", "c", "--yes")
    monkeypatch.undo()
    assert done.returncode == 3
    assert "topology.yaml was not changed: the file changed after the move read it" in done.stderr
    assert "nodes.a.shards: 0-1, nodes.c.shards: 2-3" in done.stderr
    assert path.read_text() == mine
    # Clients are served, and the databases know it; only the rest is left.
    with fleet_spares.pg_bouncer.connect("shard2") as session:
        assert session.execute("SELECT count(*) FROM photos").fetchone() == (0,)
    assert fleet_spares.listed()[0]["can"] == ["resume"]

    path.write_text("cluster: [\n")
    broken = fleet_spares.here("moves", "resume")
    assert broken.returncode == 2
    path.write_text(mine)
    done = fleet_spares.here("moves", "resume")
    assert done.returncode == 0, done.stderr
    assert "move: {retain: 1h}" in path.read_text()
    assert fleet_spares.owned() == {"a": "0-1", "b": "4-7", "c": "2-3", "d": "none"}
    assert [m["state"] for m in fleet_spares.listed()] == ["done"]


def test_a_comment_that_was_written_meanwhile_is_kept(
    fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fleet_spares.write()
    spread = conclusion.spread_map

    def meanwhile(*given: Any) -> None:
        path.write_text(path.read_text() + "# I was here, too\n")
        spread(*given)

    monkeypatch.setattr(conclusion, "spread_map", meanwhile)
    done = fleet_spares.here("move-shards", "2-3", "--to", "c", "--yes")
    assert done.returncode == 0, done.stderr
    assert path.read_text().endswith("# I was here, too\n")
    assert fleet_spares.owned()["c"] == "2-3"

    # One node that does not know the move to be over would keep the next one from beginning.
    fleet_spares.execute("a", "UPDATE shardctl.move SET state = 'routed', revision = revision - 1")
    (listed,) = fleet_spares.listed()
    assert (listed["state"], listed["can"]) == ("unfinished", ["resume"])
    assert fleet_spares.here("moves", "abort", "--yes").returncode == 1
    done = fleet_spares.here("moves", "resume")
    assert done.returncode == 0, done.stderr
    assert fleet_spares.query("a", "SELECT state, proof FROM shardctl.move") == [
        ("done", "compared")
    ]
    assert fleet_spares.query("c", "SELECT state, proof FROM shardctl.move") == [
        ("done", "compared")
    ]
    assert fleet_spares.problems() == []
