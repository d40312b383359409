"""Clones that repmgr makes, and nodes that are taken out of repmgr's cluster, all with repmgr."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.postgres import repmgr
from shardctl.postgres.copying import CopyFailed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.writers import Clients
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import (
    Cloning,
    Recording,
    clone_source,
    cloning,
    in_background,
    make_and_kill,
    photos,
)
from tests.fixtures.servers.managers import ROLE, RepmgrNode, registered
from tests.fixtures.servers.postgres import PgServer, _naming, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet

__all__ = ["clone_source", "cloning"]  # fixtures

MOVE = (
    "move-shards",
    "2-3",
    "--to",
    "c",
    "--yes",
    "--retain",
    "0s",
    "--keep-reverse",
    "0",
    "--duplicate-shared",
)
SLOWLY = "12M"
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


def test_repmgr_copies_by_the_slot_of_the_move_and_registers_nothing(
    cloning: Cloning, primary: RepmgrNode
) -> None:
    told = Recording()
    cloning.make(progress=told, max_rate="32M", clone_with="repmgr")
    assert (cloning.state(), cloning.left()) == ("made", ["c"])
    assert "copying" in told.phases
    assert 0 < told.done["copying"] <= told.phases["copying"] * 1.01
    assert primary.asked(EVENTS)[-1] == "2 standby_clone"
    assert primary.asked("SELECT count(*) FROM repmgr.nodes") == 1
    assert [n for (n,) in cloning.at_source().execute(
        "SELECT slot_name FROM pg_replication_slots"
    )] == [cloning.clone.slot]  # fmt: skip
    target = cloning.start()
    # Nothing of repmgr's own way to its upstream is left.
    shown = target.execute("SELECT current_setting('primary_slot_name')").fetchone()
    assert shown == (cloning.clone.slot,)
    auto = (cloning.data / "postgresql.auto.conf").read_text()
    assert "user=repmgr" not in auto
    assert photos(target) == photos(cloning.at_source())


def test_a_password_that_repmgr_keeps_goes_nowhere(cloning: Cloning, primary: RepmgrNode) -> None:
    with primary.server.connect(ROLE) as session:
        session.execute("UPDATE repmgr.nodes SET conninfo = conninfo || ' password=s3cret'")
        known = repmgr.look(cloning.source.node, cloning.database, session, purpose="test")
    assert known is not None
    assert "s3cret" not in repr(known)
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOWLY, clone_with="repmgr"))
    cloning.copying()
    assert "s3cret" not in (cloning.clone.work / "repmgr.conf").read_text()
    thread.join()
    assert raised == []
    written = [file for file in cloning.data.glob("*.conf*") if "s3cret" in file.read_text()]
    assert written == []


def test_a_pause_of_the_sources_repmgrd_does_not_come_along(
    preloaded_server: PgServer, server_directory: Path
) -> None:
    state = "pg_stat/repmgrd_state.txt"
    cloning = Cloning(preloaded_server, server_directory)
    with registered(preloaded_server, server_directory) as primary:
        primary.run("service", "pause")
        try:
            assert (preloaded_server.server.data_directory / state).exists()
            cloning.make()
            assert (cloning.data / "pg_stat").exists()
            assert not (cloning.data / state).exists()
        finally:
            primary.run("service", "unpause")
            cloning.end()


def test_a_source_that_repmgr_does_not_know_is_not_copied_by_it(cloning: Cloning) -> None:
    with raises_code("repmgr_absent", match="node a is not registered with repmgr as a primary"):
        cloning.make(clone_with="repmgr")
    assert cloning.left() == []


def test_a_repmgr_that_is_killed_leaves_nothing_and_copies_again(
    cloning: Cloning, primary: RepmgrNode
) -> None:
    assert primary
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOWLY, clone_with="repmgr"))
    cloning.copying()
    assert (cloning.clone.work / "repmgr.conf").exists()
    os.kill(cloning.program("repmgr"), signal.SIGKILL)
    thread.join()
    assert isinstance(raised[0], CopyFailed)
    assert "the copy failed; repmgr printed:" in raised[0].message
    assert (cloning.left(), cloning.workers()) == ([], [])
    cloning.make(clone_with="repmgr")
    assert cloning.state() == "made"


def test_a_pg_basebackup_of_repmgr_that_is_killed_is_told(
    cloning: Cloning, primary: RepmgrNode
) -> None:
    assert primary
    thread, raised = in_background(lambda: cloning.make(max_rate=SLOWLY, clone_with="repmgr"))
    cloning.copying()
    os.kill(cloning.program(), signal.SIGKILL)
    thread.join()
    assert isinstance(raised[0], CopyFailed)
    assert "repmgr printed:" in raised[0].message
    assert (cloning.left(), cloning.workers()) == ([], [])


def test_a_copy_by_repmgr_outlives_shardctl_and_is_gone_on_with(
    cloning: Cloning, primary: RepmgrNode
) -> None:
    make_and_kill(cloning, clone_with="repmgr")
    assert cloning.state() == "copying"
    cloning.make(clone_with="repmgr")
    assert cloning.state() == "made"
    assert primary.asked(EVENTS).count("2 standby_clone") == 1


@pytest.mark.parametrize("clone_with", ["repmgr", "basebackup"])
def test_a_whole_move_of_a_source_in_a_repmgr_cluster(
    fleet_points: MovingFleet, moved_primary: RepmgrNode, server_directory: Path, clone_with: str
) -> None:
    fleet_points.write()
    with fleet_points.file.open("a") as file:
        file.write(f"move: {{clone_with: {clone_with}}}\n")
    with Clients(fleet_points) as clients:
        done = fleet_points.shardctl(*MOVE)
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert fleet_points.owner == "c"
    assert ("`repmgr standby clone` makes the copy" in done.stderr) == (clone_with == "repmgr")
    assert "run `repmgr primary register` there" in done.stderr
    prove(fleet_points, clients)
    events = moved_primary.asked(EVENTS)
    assert ("2 standby_clone" in events) == (clone_with == "repmgr")
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


def test_a_move_by_repmgr_is_resumed_by_repmgr(
    fleet_points: MovingFleet, moved_primary: RepmgrNode
) -> None:
    fleet_points.write()
    before = fleet_points.file.read_text()
    fleet_points.file.write_text(f"{before}move: {{clone_with: repmgr}}\n")
    argv = [sys.executable, "-m", "shardctl", "--topology", str(fleet_points.file), *MOVE]
    with ended(subprocess.Popen([*argv, "--max-rate", SLOWLY], stderr=subprocess.PIPE)) as process:
        copied = "SELECT coalesce(max(backup_streamed), 0) FROM pg_stat_progress_basebackup"
        wait_for(lambda: fleet_points.ask("a", copied)[0][0] > 100_000)
        process.kill()
    place = fleet_points.place.with_name("c.clone")
    [worker] = [pid for pid in _naming(place) if called(pid) == "repmgr"]
    os.kill(worker, signal.SIGKILL)  # what was copied is lost, too
    fleet_points.file.write_text(before)  # which says now that pg_basebackup should
    wait_for(lambda: not fleet_points.is_locked())
    done = fleet_points.here("moves", "resume")
    assert done.returncode == 0, done.stderr
    assert moved_primary.asked(EVENTS)[-1] == "2 standby_clone"
    assert fleet_points.owner == "c"


def test_repmgr_copies_on_a_host_that_is_reached_over_ssh(
    fleet_ssh: MovingFleet, moved_primary: RepmgrNode
) -> None:
    fleet_ssh.write()
    with fleet_ssh.file.open("a") as file:
        file.write("move: {clone_with: repmgr}\n")
    done = fleet_ssh.here(*MOVE)
    assert done.returncode == 0, done.stderr
    assert fleet_ssh.owner == "c"
    assert moved_primary.asked(EVENTS)[-1] == "2 standby_clone"


def called(pid: int) -> str:
    """Give the name of a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()
