"""Clones that repmgr makes, and nodes that are taken out of repmgr's cluster, all with repmgr."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.clones import (
    Cloning,
    Recording,
    clone_source,
    cloning,
    photos,
)
from tests.fixtures.servers.managers import RepmgrNode, registered
from tests.fixtures.servers.postgres import PgServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

__all__ = ["clone_source", "cloning"]  # fixtures

MOVE = ("move-shards", "2-3", "--to", "c", "--yes", "--retain", "0s", "--duplicate-shared")
EVENTS = "SELECT array_agg(node_id || ' ' || event ORDER BY event_timestamp) FROM repmgr.events"
ROWS = "SELECT (SELECT count(*) FROM repmgr.nodes) + (SELECT count(*) FROM repmgr.events)"


@pytest.fixture
def primary(
    repmgr_program: str, clone_source: PgServer, server_directory: Path
) -> Iterator[RepmgrNode]:
    assert repmgr_program
    with registered(clone_source, server_directory) as made:
        yield made


@pytest.fixture
def moved_primary(
    repmgr_program: str, fleet_points: MovingFleet, server_directory: Path
) -> Iterator[RepmgrNode]:
    assert repmgr_program
    with registered(fleet_points.servers["a"], server_directory) as made:
        yield made


@pytest.fixture
def command(server_directory: Path) -> str:
    """Give the command of docs/howto/move-shards.md, which runs the script of that page."""
    page = Path("docs/howto/move-shards.md").read_text(encoding="utf-8")
    script = server_directory / "clone-with-repmgr"
    script.write_text(page.partition("```bash\n")[2].partition("```")[0])
    script.chmod(0o644)
    return f"sh {script}"


def test_a_command_copies_by_the_slot_of_the_move(
    cloning: Cloning, primary: RepmgrNode, command: str
) -> None:
    told = Recording()
    cloning.make(progress=told, clone_with=command)
    assert (cloning.state(), cloning.left()) == ("made", ["c"])
    assert "copying" in told.phases
    assert primary.asked(EVENTS)[-1] == "99 standby_clone"
    assert primary.asked("SELECT count(*) FROM repmgr.nodes") == 1
    assert [n for (n,) in cloning.at_source().execute(
        "SELECT slot_name FROM pg_replication_slots"
    )] == [cloning.clone.slot]  # fmt: skip
    target = cloning.start()
    # Nothing of repmgr's own way to its upstream is left.
    shown = target.execute("SELECT current_setting('primary_slot_name')").fetchone()
    assert shown == (cloning.clone.slot,)
    assert "user=repmgr" not in (cloning.data / "postgresql.auto.conf").read_text()
    assert photos(target) == photos(cloning.at_source())


@pytest.mark.parametrize("given", [False, True], ids=["pg_basebackup", "command"])
def test_a_whole_move_of_a_source_in_a_repmgr_cluster(
    fleet_points: MovingFleet,
    moved_primary: RepmgrNode,
    server_directory: Path,
    command: str,
    *,
    given: bool,
) -> None:
    fleet_points.write()
    if given:
        with fleet_points.file.open("a") as file:
            file.write(f"move: {{clone_with: {command}}}\n")
    with Clients(fleet_points) as clients:
        done = fleet_points.shardctl(*MOVE)
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert fleet_points.owner == "c"
    prove(fleet_points, clients)
    events = moved_primary.asked(EVENTS)
    assert ("99 standby_clone" in events) == given
    assert moved_primary.asked("SELECT array_agg(node_name) FROM repmgr.nodes") == ["one"]
    told = fleet_points.ask("c", "SELECT result FROM shardctl.event WHERE result ~ 'repmgr'")
    assert [text.partition(": ")[2] for (text,) in told] == [
        "removed from repmgr's cluster (database repmgr)"
    ]
    # It can be the first of a cluster of its own, even by the source's own id.
    there = moved_primary.server.server
    server = dataclasses.replace(there, port=fleet_points.port, data_directory=fleet_points.place)
    alone = RepmgrNode(PgServer(server), server_directory, moved_primary.id, "three")
    alone.write()
    assert alone.asked(ROWS) == 0
    alone.run("primary", "register")
    assert alone.asked("SELECT array_agg(node_name || ' ' || type) FROM repmgr.nodes") == [
        "three primary"
    ]
    assert "three" in alone.run("cluster", "show")
