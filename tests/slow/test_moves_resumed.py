"""Moves that stop, go on and are aborted as a user does it, and what is left of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import cutover

if TYPE_CHECKING:
    import pytest

    from tests.fixtures.moves.stopping import MovingFleet as MovedFleet


def test_a_file_that_was_changed_meanwhile_is_left_and_what_to_write_is_told(
    fleet_spares: MovedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fleet_spares.write()
    mine = path.read_text().replace("shards: {count", "move: {retain: 1h}\nshards: {count")
    spread = cutover.spread_map

    def meanwhile(*given: Any) -> None:
        path.write_text(mine)
        spread(*given)

    monkeypatch.setattr(cutover, "spread_map", meanwhile)
    done = fleet_spares.here("move-shards", "2-3", "--to", "c", "--yes")
    monkeypatch.undo()
    assert done.returncode == 3
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
